#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_CHECKS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_CHECKS_H_

#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/tensor_buffer.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// The memory of a call on the rank that makes it.
struct CallMemory {
  const std::vector<TensorBuffer>& buffers;
  bool allocates = false;  // outputs when the plan arrives
};

// All checks of a call that need no other rank. `members` is the process set, `self` the rank that
// calls. InvalidArgument names the tensor. Pure.
//
// CheckRouting: the name, the kind and the two ends of a send/recv. Rank 0 needs them to match the
// call with those of the other ranks. A call that fails here ends on its own rank.
Status CheckRouting(const Request& request, const std::vector<Rank>& members, Rank self);
// CheckContent: known enums, a reducible dtype, shapes and splits that fit the kind, a root that is
// a member, and, on the rank that calls, `memory`. A call that fails here has to be refused (see
// Refuse), so that the other ranks do not wait for it. The request has passed CheckRouting.
Status CheckContent(const Request& request, const std::vector<Rank>& members, Rank self,
                    const CallMemory* memory);
// Both, for rank 0, which trusts no other rank; a refusal has no content.
Status CheckRequest(const Request& request, const std::vector<Rank>& members, Rank self);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_CHECKS_H_
