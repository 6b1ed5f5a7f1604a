#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ATTEMPTS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ATTEMPTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// "This rank leaves its attempt number `attempt` of the process set, because of `cause`."
struct Withdrawal {
  ProcessSetId process_set = kGlobalProcessSet;
  uint64_t attempt = 0;  // counted on this rank; nothing happens if it has left it before
  Status cause;          // not ok
};

// Aborted: `what` ("allreduce of tensor 'x'") cannot end well, because the step that it belongs to
// failed; `why` names the rank and the cause.
Status StepFailed(const std::string& what, const std::string& why);

// `cause` as text, of a length that may travel and be kept.
std::string CauseText(const Status& cause);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ATTEMPTS_H_
