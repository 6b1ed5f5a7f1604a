#include "tools/gpu_check/gpu.h"

namespace tfring::gpu_check {

int Gpu::Count(const Options& options) {
  const auto driver = Require(CudaDriver::Load(options.driver));
  int count = 0;
  Require(driver->Check(driver->cu().DeviceGetCount(&count), "counting the GPUs"));
  return count;
}

Gpu::Gpu(const Options& options, int ordinal) {
  const auto driver = Require(CudaDriver::Load(options.driver));
  const CudaFunctions& cu = driver->cu();
  CuDevice device = 0;
  CuContext context = nullptr;
  Require(driver->Check(cu.DeviceGet(&device, ordinal), "opening a GPU"));
  Require(driver->Check(cu.DevicePrimaryCtxRetain(&context, device), "opening a context"));
  Require(driver->Check(cu.CtxPushCurrent(context), "entering a context"));
  device_ = Require(CudaDevice::Of(driver, context));
  stream_ = Require(device_->MakeStream());
}

char* Gpu::Allocate(int64_t bytes) {
  CuDevicePtr memory = 0;
  Check(cu().MemAlloc(&memory, static_cast<size_t>(bytes)), "allocating");
  return reinterpret_cast<char*>(memory);
}

void Gpu::Free(void* memory) {
  Check(cu().MemFree(reinterpret_cast<CuDevicePtr>(memory)), "freeing");
}

void Gpu::Upload(void* memory, const std::vector<char>& bytes) {
  if (bytes.empty()) return;
  Check(cu().MemcpyHtoDAsync(reinterpret_cast<CuDevicePtr>(memory), bytes.data(), bytes.size(),
                             stream_),
        "copying to the GPU");
  Wait();
}

std::vector<char> Gpu::Download(const void* memory, int64_t bytes) {
  std::vector<char> result(static_cast<size_t>(bytes));
  if (bytes == 0) return result;
  Check(cu().MemcpyDtoHAsync(result.data(), reinterpret_cast<CuDevicePtr>(memory), result.size(),
                             stream_),
        "copying from the GPU");
  Wait();
  return result;
}

void Gpu::Wait() {
  const auto event = Require(device_->Record(stream_));
  CuResult result = kCudaNotReady;
  while (result == kCudaNotReady) result = cu().EventQuery(event->get());
  Check(result, "waiting for a stream");
}

double Gpu::TimeOf(int times, const std::function<void()>& enqueue) {
  enqueue();
  Wait();
  const double start = Seconds();
  for (int i = 0; i < times; ++i) enqueue();
  Wait();
  return (Seconds() - start) / times;
}

}  // namespace tfring::gpu_check
