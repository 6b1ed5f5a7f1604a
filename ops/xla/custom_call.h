#ifndef TFRING_OPS_XLA_CUSTOM_CALL_H_
#define TFRING_OPS_XLA_CUSTOM_CALL_H_

#include <cstdint>
#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"
#include "xla/ffi/api/ffi.h"

// What the handlers for CPUs and those for GPUs share: the way from a custom call, that is the
// attributes which xla_kernels.cc wrote and XLA's buffers, to a call of the runtime.
namespace tfring {

xla::ffi::Error ToFfi(const Status& status);

template <typename T>
Status ReadAttribute(const xla::ffi::Dictionary& attributes, const char* name, T* value) {
  const xla::ffi::ErrorOr<T> found = attributes.get<T>(name);
  if (!found.has_value()) return Internal(std::string("custom call without ") + name);
  *value = *found;
  return OkStatus();
}

// Not ok unless there are tensors and the chain, and as many results.
Status CheckCount(const xla::ffi::RemainingArgs& arguments, const xla::ffi::RemainingRets& results);

// Fills all of the request and what `call` needs for buffers. Refuses for all ranks what was
// compiled for another number of them.
Status ReadCall(const xla::ffi::Dictionary& attributes, const xla::ffi::RemainingArgs& arguments,
                const xla::ffi::RemainingRets& results, Request* request, LocalCall* call);

// Tells XLA which function runs a custom call. False if it does not want to.
bool RegisterHandler(const char* target, const char* platform, XLA_FFI_Handler* handler);

}  // namespace tfring

#endif  // TFRING_OPS_XLA_CUSTOM_CALL_H_
