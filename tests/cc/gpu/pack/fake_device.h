#ifndef TFRING_TESTS_CC_GPU_PACK_FAKE_DEVICE_H_
#define TFRING_TESTS_CC_GPU_PACK_FAKE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/gpu/cuda/device.h"
#include "ops/gpu/cuda/driver.h"
#include "ops/gpu/cuda/pinned_memory.h"
#include "ops/gpu/pack/pack_kernels.h"
#include "tests/fakes/cuda/fake_cuda.h"

namespace tfring::testing {

// The fake driver's GPU with a stream, memory and pack kernels: those of its twin, or none.
class FakeDevice {
 public:
  explicit FakeDevice(bool with_kernels = true);
  ~FakeDevice();

  PackKernels& kernels() { return *kernels_; }
  CudaDevice& device() { return *device_; }
  FakeCudaApi& fake() { return fake_; }
  CuStream stream() const { return stream_; }

  // Device memory, for good; `offset` bytes past a multiple of 256.
  char* Allocate(int64_t bytes, int64_t offset = 0);
  // Where the CPU sees device memory.
  template <typename T = char>
  T* View(void* address, int64_t bytes) {
    return static_cast<T*>(
        fake_.View(reinterpret_cast<uintptr_t>(address), static_cast<size_t>(bytes)));
  }
  // Waits until the stream has done all its work; false after 30 s or with an error.
  bool Finish();

 private:
  FakeCudaApi fake_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<PackKernels> kernels_;
  CuStream stream_ = nullptr;
  std::vector<CuDevicePtr> memory_;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_PACK_FAKE_DEVICE_H_
