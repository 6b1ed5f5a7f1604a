#include "tests/cc/gpu/pack/fake_device.h"

#include <chrono>
#include <thread>

#include "ops/runtime/base/check.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"

namespace tfring::testing {
namespace {

// The fake takes any image: it finds kernels by their names alone.
const std::vector<PackImage>& AnyImage() {
  static const unsigned char text[] = "// any PTX";
  static const std::vector<PackImage> images = {{0, text, sizeof(text)}};
  return images;
}

std::shared_ptr<CudaDevice> OpenDevice() {
  auto driver = CudaDriver::Load(FakeDriver());
  TFRING_CHECK(driver.ok()) << driver.status().ToString();
  CuContext context = nullptr;
  TFRING_CHECK((*driver)->cu().DevicePrimaryCtxRetain(&context, 0) == kCudaSuccess);
  auto device = CudaDevice::Of(*driver, context);
  TFRING_CHECK(device.ok()) << device.status().ToString();
  return *device;
}

}  // namespace

FakeDevice::FakeDevice(bool with_kernels) : fake_(Fake()), device_(OpenDevice()) {
  fake_.Reset();
  auto pinned = std::make_shared<PinnedMemory>(device_, 1 << 20);
  const std::vector<PackImage> none;
  kernels_ = std::make_unique<PackKernels>(device_, pinned, with_kernels ? AnyImage() : none);
  auto stream = device_->MakeStream();
  TFRING_CHECK(stream.ok()) << stream.status().ToString();
  stream_ = *stream;
}

FakeDevice::~FakeDevice() {
  fake_.Reset();
  kernels_.reset();
  const ScopedContext current(device_.get());
  for (CuDevicePtr memory : memory_) device_->cu().MemFree(memory);
}

char* FakeDevice::Allocate(int64_t bytes, int64_t offset) {
  const ScopedContext current(device_.get());
  CuDevicePtr memory = 0;
  TFRING_CHECK(device_->cu().MemAlloc(&memory, static_cast<size_t>(bytes + offset)) ==
               kCudaSuccess);
  memory_.push_back(memory);
  return reinterpret_cast<char*>(memory) + offset;
}

bool FakeDevice::Finish() {
  auto event = device_->Record(stream_);
  if (!event.ok()) return false;
  for (int i = 0; i < 300000; ++i) {
    const CuResult result = device_->cu().EventQuery((*event)->get());
    if (result != kCudaNotReady) return result == kCudaSuccess;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

}  // namespace tfring::testing
