#ifndef TFRING_OPS_XLA_CUSTOM_CALL_H_
#define TFRING_OPS_XLA_CUSTOM_CALL_H_

#include <cstdint>
#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"
#include "xla/ffi/api/ffi.h"

// What the handlers for CPUs and GPUs share: from a custom call, with XLA's buffers and the
// attributes that xla_kernels.cc wrote, to a call of the runtime.
namespace tfring {

xla::ffi::Error ToFfi(const Status& status);

template <typename T>
Status ReadAttribute(const xla::ffi::Dictionary& attributes, const char* name, T* value) {
  const xla::ffi::ErrorOr<T> found = attributes.get<T>(name);
  if (!found.has_value()) return Internal(std::string("custom call without ") + name);
  *value = *found;
  return OkStatus();
}

// An error unless there are tensors and the chain, and equally many results.
Status CheckCount(const xla::ffi::RemainingArgs& arguments, const xla::ffi::RemainingRets& results);

// Fills the whole request and the buffers of `call`. Refuses, on all ranks, a function that was
// compiled for a different number of ranks.
Status ReadCall(const xla::ffi::Dictionary& attributes, const xla::ffi::RemainingArgs& arguments,
                const xla::ffi::RemainingRets& results, Request* request, LocalCall* call);

// Registers the function that runs a custom call. False if XLA refuses it.
bool RegisterHandler(const char* target, const char* platform, XLA_FFI_Handler* handler);

}  // namespace tfring

#endif  // TFRING_OPS_XLA_CUSTOM_CALL_H_
