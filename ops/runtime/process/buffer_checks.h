#ifndef TFRING_OPS_RUNTIME_PROCESS_BUFFER_CHECKS_H_
#define TFRING_OPS_RUNTIME_PROCESS_BUFFER_CHECKS_H_

#include "ops/runtime/base/status.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// InvalidArgument if the buffers of rank `self` do not belong to the shapes of the request, or
// there is no way to allocate an output that its kind needs. Thread-safe.
Status CheckBuffers(const Request& request, const LocalCall& entry, Rank self);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_BUFFER_CHECKS_H_
