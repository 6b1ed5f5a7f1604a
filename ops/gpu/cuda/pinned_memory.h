#ifndef TFRING_OPS_GPU_CUDA_PINNED_MEMORY_H_
#define TFRING_OPS_GPU_CUDA_PINNED_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "ops/gpu/cuda/device.h"
#include "ops/runtime/base/status.h"

namespace tfring {

// CPU memory that a device can copy from and to while host threads do other work. Blocks have
// rounded sizes, are reused, and are freed at the end. Blocks keep the pool alive. Thread-safe;
// Take calls the driver.
class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  // Keeps at most `limit` bytes for reuse. Take goes beyond the limit while the system has memory.
  PinnedMemory(std::shared_ptr<CudaDevice> device, int64_t limit);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Returns a block of at least `bytes`; destroying the pointer returns it to the pool, on any
  // thread. ResourceExhausted names the size.
  Result<std::shared_ptr<void>> Take(int64_t bytes);

  // Returns the allocated bytes, in use or not.
  int64_t allocated() const;

 private:
  Result<void*> Allocate(size_t size);
  bool MakeRoom(size_t size);
  void Return(size_t size, void* block);

  const std::shared_ptr<CudaDevice> device_;
  const int64_t limit_;
  mutable std::mutex mutex_;  // guards the two below
  int64_t allocated_ = 0;
  std::multimap<size_t, void*> free_;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_PINNED_MEMORY_H_
