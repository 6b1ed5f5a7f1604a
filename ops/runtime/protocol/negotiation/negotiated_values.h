#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATED_VALUES_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATED_VALUES_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// PlanItem::negotiated_values, see there: the rows of each rank, or the whole shape of a send/recv.
// The sequencer computes them from the requests of all ranks, and every rank checks those that it
// receives against its own request. Kinds that move no data put the rank that joined last, or the
// id and the ranks of a process set there.

// The values of a kind that moves data. requests[i] is the request of members[i], the ranks that
// take part; they agree (see ValidateAgreement). For alltoall this is the whole matrix of rows,
// [s * M + d] from member s to d, of which each member gets its own part.
std::vector<int64_t> NegotiatedValuesOf(const std::vector<Rank>& members,
                                        const std::vector<const Request*>& requests);

// What the plan tells one of `members` members of what NegotiatedValuesOf returned.
std::vector<int64_t> ValuesForMember(CollectiveKind kind, const std::vector<int64_t>& values,
                                     size_t members, size_t member);

// How many numbers ValuesForMember returns.
size_t NegotiatedValuesCount(const Request& request, size_t members);

// Of what NegotiatedValuesOf returned: false if some member would receive more rows or bytes than
// an int64 holds. `request` is that of any member.
bool NegotiatedValuesCountable(const std::vector<int64_t>& negotiated_values, size_t members,
                               const Request& request);

// Checks values of any kind that came over the wire: false if they do not fit the request of
// `self`, one of `members`, or if the sums of the rows and bytes that this rank receives overflow.
bool NegotiatedValuesFit(const std::vector<int64_t>& negotiated_values,
                         const std::vector<Rank>& members, Rank self, const Request& request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATED_VALUES_H_
