#ifndef TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_
#define TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_

#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/protocol/message/plan.h"

namespace tfring {

// Returns the collective that the backend of rank `self` runs for a plan that moves data: the
// buffers of its calls in order. Allocates outputs whose size only the plan knows, announces what
// alltoall receives, and then marks a device's stream ready again. If the framework has no memory
// for an output, the call fails but takes part with scratch memory, because the other ranks wait
// for its data. Not OK if there is no scratch memory either or the stream cannot be marked. Control
// thread.
Result<Collective> BuildCollective(const PlanRun& run, Rank self,
                                   const std::vector<RunningCall*>& calls);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_COLLECTIVE_BUILDER_H_
