#ifndef TFRING_OPS_KERNELS_TENSORFLOW_COMPAT_H_
#define TFRING_OPS_KERNELS_TENSORFLOW_COMPAT_H_

// The differences between the C++ interfaces of TensorFlow 2.16 to 2.22 that concern the ops. Some
// headers have moved; the names in them are the same.

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/public/version.h"
#include "tsl/profiler/lib/traceme_encode.h"
#include "xla/stream_executor/device_memory.h"
#include "xla/stream_executor/stream.h"

#if __has_include("xla/tsl/profiler/backends/cpu/traceme_recorder.h")
#include "xla/tsl/profiler/backends/cpu/traceme_recorder.h"
#else  // before 2.18
#include "tsl/profiler/backends/cpu/traceme_recorder.h"
#endif
#if __has_include("xla/tsl/profiler/utils/time_utils.h")
#include "xla/tsl/profiler/utils/time_utils.h"
#else  // before 2.19
#include "tsl/profiler/utils/time_utils.h"
#endif

namespace tfring {

#if __has_include("xla/stream_executor/device_address.h")
using DeviceBytes = stream_executor::DeviceAddressBase;
#else  // before 2.21
using DeviceBytes = stream_executor::DeviceMemoryBase;
#endif

// Enqueues a write of `size` zero bytes on the device's stream.
inline absl::Status WriteZeros(stream_executor::Stream* stream, void* memory, uint64_t size) {
  DeviceBytes bytes(memory, size);
#if defined(TF_MINOR_VERSION) && TF_MINOR_VERSION == 16  // newer headers need not define it
  stream->ThenMemZero(&bytes, size);
  return stream->ok() ? absl::OkStatus() : absl::InternalError("a stream of the device has failed");
#else
  return stream->MemZero(&bytes, size);
#endif
}

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_TENSORFLOW_COMPAT_H_
