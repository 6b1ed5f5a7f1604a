#ifndef TFRING_OPS_SIM_LOCKED_WORKLOAD_H_
#define TFRING_OPS_SIM_LOCKED_WORKLOAD_H_

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Steps that repeat, so that rank 0 locks them, and then change: a tensor is missing or new, a
// shape changes, the order changes on one rank or on all, one rank waits for a result where the
// others do not, a rank is slow once or before the last call of several rounds, a metric or a wrong
// call comes in between, ranks join, a process set is added, used and removed, or a step fails on
// some ranks.
Workload MakeLockedWorkload(int ranks, Random random);

// Steps that repeat, in a lock that sometimes ends because something wants to see requests. Faults
// happen within a lock or at its begin or end.
Workload MakeSteadyWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_LOCKED_WORKLOAD_H_
