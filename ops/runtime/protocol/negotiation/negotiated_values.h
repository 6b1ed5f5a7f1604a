#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATED_VALUES_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATED_VALUES_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// PlanItem::negotiated_values of the kinds that move data, as plan.h says: the sequencer makes them
// out of what all asked for, and every rank checks them against what it asked for itself.

// requests[i] is what members[i], who take part, asked for; they agree (see ValidateAgreement).
std::vector<int64_t> NegotiatedValuesOf(const std::vector<Rank>& members,
                                        const std::vector<const Request*>& requests);

// How many numbers NegotiatedValuesOf makes for so many members.
size_t NegotiatedValuesCount(const Request& request, size_t members);

// Whether every member can count the rows and bytes that it gets; `request` is that of any.
bool NegotiatedValuesCountable(const std::vector<int64_t>& negotiated_values, size_t members,
                               const Request& request);

// False if what came over the wire is not what `self`, one of `members`, asked for, or holds more
// bytes than can be counted.
bool NegotiatedValuesFit(const std::vector<int64_t>& negotiated_values,
                         const std::vector<Rank>& members, Rank self, const Request& request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATED_VALUES_H_
