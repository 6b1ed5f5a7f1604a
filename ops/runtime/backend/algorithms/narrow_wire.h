#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_NARROW_WIRE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_NARROW_WIRE_H_

#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// As what the data of a collective travels between hosts: the setting for sums of float32 over
// several hosts; float32, which stands for "as it is", for everything else.
DataType WireOf(const Collective& collective, const Config& config, const HostLayout& layout);

// Makes a schedule of an allreduce of float32 send 16 bits for each element between hosts, so that
// all members still get the same bits. Whoever finishes an element rounds it, and keeps it rounded;
// what is rounded already does not change any more on its way. Results are left as they are where
// parts were rounded instead (Schedule::rounds_parts): then every host has made the same sum.
// Peers are positions in `layout`.
void NarrowBetweenHosts(const HostLayout& layout, int self, DataType wire, Schedule* schedule);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_NARROW_WIRE_H_
