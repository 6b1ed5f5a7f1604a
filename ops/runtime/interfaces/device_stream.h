#ifndef TFRING_OPS_RUNTIME_INTERFACES_DEVICE_STREAM_H_
#define TFRING_OPS_RUNTIME_INTERFACES_DEVICE_STREAM_H_

#include <cstdint>
#include <memory>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// The stream on which the framework computes, as one call sees it. The memory of the call's tensors
// belongs to that stream: what the framework enqueued there before the last MarkReady may still
// write the inputs, or use the memory that has become an output. Made by the process's runtime for
// a stream of the framework; one per call. For one thread at a time; may be destroyed on any
// thread.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Whether this rank can run the collective between devices. If not, or if another rank cannot, it
  // is staged: copied to the CPU, run there and copied back.
  virtual bool RunsOnDevice(CollectiveKind kind, DataType dtype, ReduceOp op) const = 0;

  // From here on the memory of the call may be used after all that is on the stream now. To be
  // called when the inputs are there, and again after each allocation. Does not block.
  virtual Status MarkReady() = 0;

  // From here on the framework's stream does nothing before the results of the call are there. Does
  // not block. For an early call, between kLaunched and the first use of the results: what the
  // framework enqueues before runs beside the collective.
  virtual Status WaitForResults() = 0;

  // Memory of the device for an output that is thrown away; freed with the pointer, once the device
  // has no more use for it.
  virtual Result<std::shared_ptr<void>> AllocateScratch(int64_t bytes) = 0;

  // Puts a number into memory of the device, after what is on the stream now. Does not block.
  virtual Status Write(void* memory, int32_t value) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_DEVICE_STREAM_H_
