#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_

#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// Checks that all ranks that take part make the same call: requests[i] is the request of members[i]
// under one name, never null. FailedPrecondition names the tensor, the ranks, both values and what
// to do; InvalidArgument repeats the reason for which a rank refused its own call.
Status ValidateAgreement(const std::vector<Rank>& members,
                         const std::vector<const Request*>& requests);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
