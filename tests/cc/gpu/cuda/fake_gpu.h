#ifndef TFRING_TESTS_CC_GPU_CUDA_FAKE_GPU_H_
#define TFRING_TESTS_CC_GPU_CUDA_FAKE_GPU_H_

#include <memory>
#include <string>
#include <vector>

#include "ops/gpu/cuda/device.h"
#include "ops/gpu/cuda/stream.h"
#include "tests/fakes/cuda/fake_cuda.h"

namespace tfring::testing {

// Where the fake driver is.
std::string FakeDriver();

// What the fake exports beside the driver API.
const FakeCudaApi& Fake();

// The driver API itself.
const CudaFunctions& Cu();

// A GPU of the fake with a stream on which a framework would compute. Everything that it does takes
// place on that stream, late.
class Framework {
 public:
  explicit Framework(int ordinal = 0);

  CuContext context() const { return context_; }
  CuStream stream() const { return stream_; }

  // Memory in which the CPU cannot read or write. `fill` is written to it by the stream.
  CuDevicePtr Allocate(const std::vector<char>& fill);
  void Free(CuDevicePtr memory);

  // Copies on the stream, from device memory to CPU memory that the result owns; to be read after
  // Wait.
  std::shared_ptr<std::vector<char>> Fetch(CuDevicePtr memory, size_t bytes);
  // Until the stream has done all that it was given.
  void Wait();

 private:
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_CUDA_FAKE_GPU_H_
