#ifndef TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_
#define TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_

#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/protocol/message/plan.h"

namespace tfring {

// The collective that the backend of rank `self` has to run for a plan that moves data: the buffers
// of its calls, one after another. Outputs whose size only the plan knows are allocated here, and
// alltoall announces what it receives; the stream of a device is then marked ready again. If the
// framework has no memory for an output, the call will fail, but it takes part with scratch memory,
// because the other ranks wait for its data. Not ok if there is not even scratch memory, or the
// stream cannot be marked. Control thread.
Result<Collective> BuildCollective(const PlanRun& run, Rank self,
                                   const std::vector<RunningCall*>& calls);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_
