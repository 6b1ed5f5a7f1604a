#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// What the layout hashes of gradients stand for, as far as ranks have said it: a line for each
// variable, "Dhead/kernel<tab>(float32, shape [4, 1])". The letter is the kind of its gradient: N
// none, D dense, S tf.IndexedSlices, A those with sparse_as_dense="auto".
using Layouts = std::map<uint64_t, std::string>;

// Checks that all ranks that take part make the same call: requests[i] is the request of members[i]
// under one name, never null. FailedPrecondition names the tensor, the ranks, both values and what
// to do; InvalidArgument repeats the reason for which a rank refused its own call, or says that the
// call is too large for this number of ranks. All checks that compare the requests of several
// ranks, and their messages, go here; those of a request by itself into CheckContent.
Status ValidateAgreement(const std::vector<Rank>& members,
                         const std::vector<const Request*>& requests, const Layouts& layouts = {});

// InvalidArgument if the `values` computed from such requests (see NegotiatedValuesOf) make any
// member receive more than can be counted. `request` is that of any member.
Status ValidateValues(const std::vector<Rank>& members, const std::vector<int64_t>& values,
                      const Request& request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_VALIDATION_H_
