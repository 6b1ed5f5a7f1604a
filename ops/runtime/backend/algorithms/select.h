#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// How the members of a process set are connected. All members must come to the same answer.
enum class Connectivity {
  kFull,  // everybody with everybody
  kRing,  // only with the next and the previous position, around
  kLine,  // the same with one gap, anywhere
  kNone,  // less than that
};

// For a process set in a world of `world_size` ranks that is fully connected or, if not, in a ring.
Connectivity ConnectivityOf(const std::vector<Rank>& members, int world_size, bool full_mesh);

// The schedule of this rank for a collective that has passed CheckCollective: by kind, size,
// number of ranks and settings. Pure; every member gets schedules that fit together.
// Unimplemented if the members are not connected well enough.
Result<Schedule> SelectSchedule(const Collective& collective, const Config& config,
                                Connectivity connectivity);

// Sizes, positions and pointers that contradict each other: Internal, naming them.
Status CheckCollective(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_
