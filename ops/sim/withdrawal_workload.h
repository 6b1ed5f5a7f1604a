#ifndef TFRING_OPS_SIM_WITHDRAWAL_WORKLOAD_H_
#define TFRING_OPS_SIM_WITHDRAWAL_WORKLOAD_H_

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Steps that fail, on overlapping process sets. Each set has one user on each member. The user
// tries a step of random collectives, joins included, up to four times. In each attempt except the
// last the step fails on one or more ranks at random moments: before its first call, while calls
// wait or run, after the last call, or because the ranks disagree in a call. The other ranks have a
// last call that only this failure can end. In the last attempt nothing fails. Names repeat in each
// attempt. Meanwhile process sets are added, and one is removed in which steps fail.
Workload MakeWithdrawalWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_WITHDRAWAL_WORKLOAD_H_
