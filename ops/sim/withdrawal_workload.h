#ifndef TFRING_OPS_SIM_WITHDRAWAL_WORKLOAD_H_
#define TFRING_OPS_SIM_WITHDRAWAL_WORKLOAD_H_

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Steps that fail: on overlapping process sets, each with a user of its own on every member, who
// tries a step of random collectives, joins among them, up to four times. Each time but the last
// the step fails on one or several ranks at random moments: before its first call, while calls
// wait or run, or after the last one, or because the ranks disagree in a call. The others have a
// call at the end that nothing but this failure can end. The last time nothing fails. Names come
// again in every attempt. Meanwhile process sets are added, and one is removed in which steps fail.
Workload MakeWithdrawalWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_WITHDRAWAL_WORKLOAD_H_
