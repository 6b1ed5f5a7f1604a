#include "ops/gpu/cuda/stream.h"

#include <utility>

#include "ops/runtime/base/log.h"

namespace tfring {

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device, CuStream framework, DeviceRule rule)
    : device_(std::move(device)), framework_(framework), rule_(std::move(rule)) {}

bool CudaStream::RunsOnDevice(CollectiveKind kind, DataType dtype, ReduceOp op) const {
  return rule_ && rule_(kind, dtype, op);
}

Status CudaStream::MarkReady() {
  if (ready_ == nullptr) {
    Result<std::shared_ptr<CudaEvent>> event = device_->TakeEvent();
    if (!event.ok()) return event.status();
    ready_ = std::move(*event);
  }
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  return device_->Check(device_->cu().EventRecord(ready_->get(), framework_),
                        "marking where tensors are ready");
}

Result<std::shared_ptr<void>> CudaStream::AllocateScratch(int64_t bytes) {
  return device_->Scratch(bytes);
}

Status CudaStream::Write(void* memory, int32_t value) {
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  return device_->Check(device_->cu().MemsetD32Async(reinterpret_cast<CuDevicePtr>(memory),
                                                     static_cast<unsigned>(value), 1, framework_),
                        "writing a number");
}

Status CudaStream::LetWait(CuStream ours) const {
  if (ready_ == nullptr) return Internal("a call on a GPU came without a mark of what is ready");
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  return device_->Check(device_->cu().StreamWaitEvent(ours, ready_->get(), 0),
                        "waiting for tensors");
}

Status CudaStream::WaitForResults() {
  if (results_ == nullptr) return OkStatus();  // the call is not early, or ran on the CPU
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  return device_->Check(device_->cu().StreamWaitEvent(framework_, results_->get(), 0),
                        "making the framework wait for results");
}

CudaDevices::CudaDevices(std::string library, DeviceRule rule)
    : library_(std::move(library)), rule_(std::move(rule)) {}

// Call this under `mutex_`. Does not retry a driver that could not be loaded.
Result<std::shared_ptr<const CudaDriver>> CudaDevices::Driver() {
  if (driver_ == nullptr && unavailable_.ok()) {
    Result<std::shared_ptr<const CudaDriver>> loaded = CudaDriver::Load(library_);
    unavailable_ = loaded.status();
    if (loaded.ok()) driver_ = std::move(*loaded);
  }
  if (driver_ == nullptr) return unavailable_;
  return driver_;
}

Result<std::shared_ptr<DeviceStream>> CudaDevices::Wrap(void* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Result<std::shared_ptr<const CudaDriver>> driver = Driver();
  if (!driver.ok()) return driver.status();
  const CuStream framework = static_cast<CuStream>(stream);
  CuContext context = nullptr;
  TFRING_RETURN_IF_ERROR((*driver)->Check((*driver)->cu().StreamGetCtx(framework, &context),
                                          "asking for the context of TensorFlow's stream"));
  std::shared_ptr<CudaDevice>& device = devices_[context];
  if (device == nullptr) {
    Result<std::shared_ptr<CudaDevice>> made = CudaDevice::Of(*driver, context);
    if (!made.ok()) return made.status();
    device = std::move(*made);
    if (own_ == nullptr) {
      own_ = device;
    } else {
      Log(LogLevel::kWarning, "this rank has tensors on " + device->uuid() +
                                  ", and had earlier ones on " + own_->uuid() +
                                  ": collectives of tensors that are not on the first GPU go "
                                  "through CPU memory; keep a rank to one GPU");
    }
  }
  const DeviceRule rule = device == own_ ? rule_ : DeviceRule();
  return std::shared_ptr<DeviceStream>(std::make_shared<CudaStream>(device, framework, rule));
}

}  // namespace tfring
