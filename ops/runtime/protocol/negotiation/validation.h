#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_

#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// Checks that those who take part mean the same collective: requests[i] is what members[i] asked
// for under one name, never null. FailedPrecondition names the tensor, the ranks, both values and
// what to do; InvalidArgument repeats what a rank refused its own call for.
Status ValidateAgreement(const std::vector<Rank>& members,
                         const std::vector<const Request*>& requests);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
