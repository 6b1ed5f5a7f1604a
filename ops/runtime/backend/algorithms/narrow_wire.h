#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_NARROW_WIRE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_NARROW_WIRE_H_

#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The dtype on the wire between hosts: the setting, for allreduces that sum or average float32 over
// several hosts; otherwise float32, which means unchanged.
DataType WireOf(const Collective& collective, const Config& config, const HostLayout& layout);

// Makes the schedule of a float32 allreduce send 16 bits per element between hosts. All members
// still get the same bits: the member that finishes an element rounds it and keeps the rounded
// value, and a rounded value does not change on its way. If the schedule rounds parts instead
// (Schedule::rounds_parts), results are not rounded: every host has computed the same sum. Peers
// are positions in `layout`.
void NarrowBetweenHosts(const HostLayout& layout, int self, DataType wire, Schedule* schedule);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_NARROW_WIRE_H_
