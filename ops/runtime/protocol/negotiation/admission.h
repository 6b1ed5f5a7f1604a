#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ADMISSION_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ADMISSION_H_

#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/message/request_checks.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

// Checks a call of rank `self` before the engine gets it; `sets` are those that the caller sees,
// and `memory` what it has for the call, null where there is no data. InvalidArgument if rank 0
// could not match it with the calls of other ranks: an unknown process set, one that `self` is no
// member of, or a request that fails CheckRouting. A request that is wrong otherwise becomes a
// refusal, which the engine takes like any other request. Pure.
Status AdmitRequest(const ProcessSets& sets, Rank self, const CallMemory* memory, Request* request);

// "there is no process set 3: ..."
std::string NoSuchSet(ProcessSetId id);

// FailedPrecondition for a call that was admitted and whose process set was removed before it ran.
Status SetWasRemoved(const Request& request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ADMISSION_H_
