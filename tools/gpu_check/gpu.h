#ifndef TFRING_TOOLS_GPU_CHECK_GPU_H_
#define TFRING_TOOLS_GPU_CHECK_GPU_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/backend/cuda/device.h"
#include "tools/gpu_check/report.h"

namespace tfring::gpu_check {

// What the steps were started with.
struct Options {
  std::string driver = "libcuda.so.1";
  std::string nccl;      // empty: found as the runtime finds it
  bool doubles = false;  // the driver and NCCL are doubles, which compute on the processor
};

// A GPU, its primary context current on this thread for good, and a stream. Failures throw.
class Gpu {
 public:
  Gpu(const Options& options, int ordinal);

  static int Count(const Options& options);

  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  const CudaFunctions& cu() const { return device_->cu(); }
  CuStream stream() const { return stream_; }

  char* Allocate(int64_t bytes);
  void Free(void* memory);
  void Upload(void* memory, const std::vector<char>& bytes);
  std::vector<char> Download(const void* memory, int64_t bytes);
  void Check(CuResult result, const char* doing) { Require(device_->Check(result, doing)); }

  // Spins until the stream has done its work.
  void Wait();
  // Seconds that one of `times` runs of what `enqueue` enqueues takes, after one to warm up.
  double TimeOf(int times, const std::function<void()>& enqueue);

 private:
  std::shared_ptr<CudaDevice> device_;
  CuStream stream_ = nullptr;
};

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_GPU_H_
