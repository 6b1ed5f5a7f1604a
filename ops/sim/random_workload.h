#ifndef TFRING_OPS_SIM_RANDOM_WORKLOAD_H_
#define TFRING_OPS_SIM_RANDOM_WORKLOAD_H_

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Every kind of collective on random overlapping process sets, which are added and removed during
// the run. Ranks run out of work at different times and join. Ranks disagree about some calls, and
// some calls are invalid on one rank. Each call holds its expected end and its participants.
Workload MakeRandomWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_RANDOM_WORKLOAD_H_
