#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_

#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// How the members of a process set are connected with each other.
enum class Connectivity {
  kFull,  // every member with every other
  kRing,  // every member with the next and the previous position, the last one with the first
  kLine,  // a ring with one gap, anywhere
  kNone,  // less than that
};

// The connectivity of a process set in a world of `world_size` ranks, all of which are connected
// with each other (`full_mesh`) or in a ring. All members come to the same answer.
Connectivity ConnectivityOf(const std::vector<Rank>& members, int world_size, bool full_mesh);

// Selects an algorithm by kind, size, number of ranks, settings and the hosts of the members, and
// returns its schedule for this rank. The collective has no contradiction (see check_collective.h).
// Pure; the schedules of all members fit together. Unimplemented, on all members, if they are not
// connected well enough.
Result<Schedule> SelectSchedule(const Collective& collective, const Config& config,
                                Connectivity connectivity, const HostLayout& layout = {});

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_
