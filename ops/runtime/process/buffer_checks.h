#ifndef TFRING_OPS_RUNTIME_PROCESS_BUFFER_CHECKS_H_
#define TFRING_OPS_RUNTIME_PROCESS_BUFFER_CHECKS_H_

#include "ops/runtime/base/status.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// InvalidArgument if the buffers of rank `self` do not have the sizes of the request's shapes, or
// if `allocate` is missing although the kind needs it. Pure.
Status CheckBuffers(const Request& request, const LocalCall& call, Rank self);

// InvalidArgument if a send is made by the rank that receives, or the other way round, as by a
// function that was traced when this rank had another number. Pure.
Status CheckDirection(const Request& request, const LocalCall& call, Rank self);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_BUFFER_CHECKS_H_
