#ifndef TFRING_OPS_GPU_CUDA_STREAM_H_
#define TFRING_OPS_GPU_CUDA_STREAM_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ops/gpu/cuda/device.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/device_stream.h"

namespace tfring {

// Whether this rank can run this collective between devices. Any thread; must not block.
using DeviceRule = std::function<bool(CollectiveKind, DataType, ReduceOp)>;

// A framework stream in one call, see DeviceStream. Each MarkReady records the same event again.
class CudaStream final : public DeviceStream {
 public:
  CudaStream(std::shared_ptr<CudaDevice> device, CuStream framework, DeviceRule rule);

  // Returns the stream of a call; DeviceStream has no other implementation.
  static CudaStream& Of(const DeviceCall& call) { return static_cast<CudaStream&>(*call.stream); }

  bool RunsOnDevice(CollectiveKind kind, DataType dtype, ReduceOp op) const override;
  Status MarkReady() override;
  Status WaitForResults() override;
  Result<std::shared_ptr<void>> AllocateScratch(int64_t bytes) override;
  Status Write(void* memory, int32_t value) override;

  const std::shared_ptr<CudaDevice>& device() const { return device_; }

  // Makes `ours` wait for MarkReady's event: work put on `ours` from now on starts when the call's
  // memory may be used.
  Status LetWait(CuStream ours) const;
  // The results are there after `event`. Call this before kLaunched.
  void SetResults(std::shared_ptr<CudaEvent> event) { results_ = std::move(event); }

 private:
  const std::shared_ptr<CudaDevice> device_;
  const CuStream framework_;
  const DeviceRule rule_;
  std::shared_ptr<CudaEvent> ready_;
  std::shared_ptr<CudaEvent> results_;
};

// The devices of a process, found by the streams that the framework passes. Loads the driver with
// the first stream. A rank's device is that of its first stream; calls with tensors on another
// device do not run on a device. Thread-safe. A device lives as long as anything uses it.
class CudaDevices {
 public:
  // `library` as in CudaDriver::Load.
  CudaDevices(std::string library, DeviceRule rule);

  // As ProcessRuntime::WrapStream.
  Result<std::shared_ptr<DeviceStream>> Wrap(void* stream);

 private:
  Result<std::shared_ptr<const CudaDriver>> Driver();

  const std::string library_;
  const DeviceRule rule_;
  std::mutex mutex_;  // guards all below
  Status unavailable_;
  std::shared_ptr<const CudaDriver> driver_;
  std::map<CuContext, std::shared_ptr<CudaDevice>> devices_;
  std::shared_ptr<CudaDevice> own_;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_STREAM_H_
