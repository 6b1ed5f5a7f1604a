#ifndef TFRING_OPS_SIM_RANDOM_WORKLOAD_H_
#define TFRING_OPS_SIM_RANDOM_WORKLOAD_H_

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Every kind of collective on random overlapping process sets, which are added and removed during
// the run; ranks that run out of work at different times and join; calls about which the ranks
// disagree, and calls that are invalid on one rank. Each call says how it must end and which ranks
// take part in it.
Workload MakeRandomWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_RANDOM_WORKLOAD_H_
