#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// Checks that all ranks that take part make the same call: requests[i] is the request of members[i]
// under one name, never null. FailedPrecondition names the tensor, the ranks, both values and what
// to do; InvalidArgument repeats the reason for which a rank refused its own call, or says that the
// call is too large for so many ranks. All checks that compare the requests of several ranks, and
// their messages, go here; those of a request by itself into CheckContent.
Status ValidateAgreement(const std::vector<Rank>& members,
                         const std::vector<const Request*>& requests);

// InvalidArgument if the `values` computed from such requests (see NegotiatedValuesOf) make any
// member receive more than can be counted. `request` is that of any member.
Status ValidateValues(const std::vector<Rank>& members, const std::vector<int64_t>& values,
                      const Request& request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
