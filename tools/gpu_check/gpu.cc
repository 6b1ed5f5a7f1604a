#include "tools/gpu_check/gpu.h"

#include <dlfcn.h>

#include <chrono>
#include <thread>

namespace tfring::gpu_check {
namespace {

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  Require(*function != nullptr, std::string("the CUDA driver has no ") + name);
}

// A kernel of one thread that looks at the clock until its time is over.
constexpr char kSpin[] = R"(.version 8.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds) {
  .reg .u64 %limit, %begin, %now;
  .reg .pred %go_on;
  ld.param.u64 %limit, [nanoseconds];
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.lt.u64 %go_on, %now, %limit;
  @%go_on bra again;
  ret;
}
)";

void Sleep(void* seconds) {
  const std::unique_ptr<double> owned(static_cast<double*>(seconds));
  std::this_thread::sleep_for(std::chrono::duration<double>(*owned));
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

Gpu::Gpu(const Options& options, int ordinal)
    : more_(LoadMore(options)),
      fakes_spin_(dlsym(dlopen(options.driver.c_str(), RTLD_NOW | RTLD_LOCAL), "FakeCudaEnqueue")) {
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

void Gpu::Spin(double seconds) {
  if (fakes_spin_ != nullptr) {
    using Enqueue = int (*)(CuStream, void (*)(void*), void*);
    const int result = reinterpret_cast<Enqueue>(fakes_spin_)(stream_, Sleep, new double(seconds));
    Require(result == 0, "the fake takes no kernel");
    return;
  }
  if (spin_ == nullptr) {
    CuModule module = nullptr;
    Check(cu().ModuleLoadData(&module, kSpin), "loading a kernel");
    Check(cu().ModuleGetFunction(&spin_, module, "spin"), "looking for a kernel");
  }
  uint64_t nanoseconds = static_cast<uint64_t>(seconds * 1e9);
  void* parameters[] = {&nanoseconds};
  Check(cu().LaunchKernel(spin_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr),
        "launching a kernel");
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
