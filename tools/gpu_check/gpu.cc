#include "tools/gpu_check/gpu.h"

#include <dlfcn.h>

namespace tfring::gpu_check {
namespace {

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  Require(*function != nullptr, std::string("the CUDA driver has no ") + name);
}

}  // namespace

MoreCudaFunctions LoadMore(const Options& options) {
  void* const library = dlopen(options.driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  Require(library != nullptr, "there is no CUDA driver " + options.driver);
  MoreCudaFunctions more;
  Find(library, "cuStreamSynchronize", &more.StreamSynchronize);
  Find(library, "cuEventSynchronize", &more.EventSynchronize);
  Find(library, "cuEventElapsedTime", &more.EventElapsedTime);
  Find(library, "cuDeviceCanAccessPeer", &more.DeviceCanAccessPeer);
  Find(library, "cuDeviceTotalMem_v2", &more.DeviceTotalMem);
  return more;
}

int Gpu::Count(const Options& options) {
  const auto driver = Require(CudaDriver::Load(options.driver));
  int count = 0;
  Require(driver->Check(driver->cu().DeviceGetCount(&count), "counting the GPUs"));
  return count;
}

Gpu::Gpu(const Options& options, int ordinal) : more_(LoadMore(options)) {
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

double Gpu::DeviceTimeOf(const std::function<void()>& enqueue) {
  CuEvent from = nullptr, to = nullptr;
  Check(cu().EventCreate(&from, 0), "making an event");
  Check(cu().EventCreate(&to, 0), "making an event");
  Check(cu().EventRecord(from, stream_), "recording an event");
  enqueue();
  Check(cu().EventRecord(to, stream_), "recording an event");
  Wait();
  float milliseconds = 0.0f;
  Check(more_.EventElapsedTime(&milliseconds, from, to), "reading the device's clock");
  Check(cu().EventDestroy(from), "destroying an event");
  Check(cu().EventDestroy(to), "destroying an event");
  return milliseconds / 1e3;
}

}  // namespace tfring::gpu_check
