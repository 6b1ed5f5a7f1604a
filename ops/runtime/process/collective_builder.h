#ifndef TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_
#define TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_

#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/protocol/engine/engine.h"

namespace tfring {

// What the plan asks of this rank's backend: the buffers of its calls, one after another. Outputs
// whose size only the plan knows are allocated here, and alltoall is told what it receives. Where
// the framework has no memory for one, the call is marked as failed and scratch memory stands in,
// because the other ranks count on us. Internal if the plan does not fit the calls, or if there is
// not even scratch memory. Not for kinds that move no data. Control thread.
Result<Collective> BuildCollective(const PlanRun& run, Rank self,
                                   const std::vector<RunningCall*>& calls);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_
