#ifndef TFRING_OPS_SIM_RANDOM_WORKLOAD_H_
#define TFRING_OPS_SIM_RANDOM_WORKLOAD_H_

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Every kind of collective on random overlapping process sets, which are added and removed on the
// way; ranks that run out of work at different times and join; calls about which the ranks
// disagree, and calls that are invalid on one rank. Says of each call how it has to end and who
// takes part in it.
Workload MakeRandomWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_RANDOM_WORKLOAD_H_
