#ifndef TFRING_TOOLS_GPU_CHECK_GPU_H_
#define TFRING_TOOLS_GPU_CHECK_GPU_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/gpu/cuda/device.h"
#include "tools/gpu_check/report.h"

namespace tfring::gpu_check {

// What the steps were started with.
struct Options {
  std::string driver = "libcuda.so.1";
  std::string nccl;           // empty: found as the runtime finds it
  bool fakes = false;         // the driver and NCCL are fakes, which compute on the processor
  int64_t largest_bytes = 0;  // of a tensor; 0: what suits a GPU or the fakes
  double limit = 20.0;        // seconds that a step with Phases takes at most
};

// The largest tensor.
inline int64_t LargestBytes(const Options& options) {
  if (options.largest_bytes > 0) return options.largest_bytes;
  return options.fakes ? 1 << 18 : 1 << 30;
}

// Functions of the driver that the runtime does not use, and the checks do.
struct MoreCudaFunctions {
  CuResult (*StreamSynchronize)(CuStream);
  CuResult (*EventSynchronize)(CuEvent);
  CuResult (*EventElapsedTime)(float* milliseconds, CuEvent from, CuEvent to);
  CuResult (*DeviceCanAccessPeer)(int* can, CuDevice, CuDevice peer);
  CuResult (*DeviceTotalMem)(size_t* bytes, CuDevice);
};
MoreCudaFunctions LoadMore(const Options& options);

// A GPU, its primary context current on this thread for good, and a stream. Failures throw.
class Gpu {
 public:
  Gpu(const Options& options, int ordinal);

  static int Count(const Options& options);

  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  const CudaFunctions& cu() const { return device_->cu(); }
  const MoreCudaFunctions& more() const { return more_; }
  CuStream stream() const { return stream_; }

  char* Allocate(int64_t bytes);
  void Free(void* memory);
  void Upload(void* memory, const std::vector<char>& bytes);
  std::vector<char> Download(const void* memory, int64_t bytes);
  void Check(CuResult result, const char* doing) { Require(device_->Check(result, doing)); }

  // Until the stream has done its work, by asking all the time.
  void Wait();
  // Puts a kernel on the stream that keeps one multiprocessor busy.
  void Spin(double seconds);
  // Seconds that one of `times` runs of what `enqueue` enqueues takes on the host's clock, after
  // one to warm up.
  double TimeOf(int times, const std::function<void()>& enqueue);
  // Seconds on the device's clock from before to after what `enqueue` puts on the stream.
  double DeviceTimeOf(const std::function<void()>& enqueue);

 private:
  const MoreCudaFunctions more_;
  std::shared_ptr<CudaDevice> device_;
  CuStream stream_ = nullptr;
  void* const fakes_spin_;     // how the fake driver puts a kernel on a stream, else null
  CuFunction spin_ = nullptr;  // loaded at its first use
};

// The value of which half (fraction 0.5) or 95 of 100 (0.95) are smaller.
inline double Quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<size_t>(static_cast<double>(values.size()) * fraction));
}

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_GPU_H_
