#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_

#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Selects an algorithm by kind, size, number of ranks, settings and the hosts of the members, and
// returns its schedule for this rank.
// Pure; the schedules of all members fit together.
Schedule SelectSchedule(const Collective& collective, const Config& config,
                        const HostLayout& layout = {});

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_SELECT_H_
