#ifndef TFRING_TESTS_FAKES_CUDA_MEMORY_H_
#define TFRING_TESTS_FAKES_CUDA_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/fakes/cuda/driver_types.h"

namespace fake_cuda {

// What allocated, freed and not yet written memory holds.
inline constexpr unsigned char kFreshPoison = 0xA5;
inline constexpr unsigned char kFreedPoison = 0xDE;
inline constexpr unsigned char kInFlightPoison = 0xC3;

// A range of memory that is kept while the pointer lives.
struct Bytes {
  std::shared_ptr<void> keep;  // null: plain host memory
  char* data = nullptr;
};

// The memory of all devices, and which host memory is pinned. An allocation on a device has a range
// of addresses that the host cannot touch, reserved for ever, and a shadow elsewhere that holds the
// data until it is freed. Thread-safe.
class Memory {
 public:
  struct Range {
    Address begin = 0;
    size_t bytes = 0;
    int device = 0;
  };

  // The memory of this process; never destroyed.
  static Memory& Get();

  Result Allocate(int device, size_t bytes, Address* address);
  Result Free(Address address);

  // Ordinary memory that counts as pinned. Aborts when memory is given back that is not pinned.
  void* AllocatePinned(size_t bytes);
  void FreePinned(void* data);
  Result RegisterPinned(void* data, size_t bytes);
  Result UnregisterPinned(void* data);

  // The device allocation, or pinned host memory, that holds an address; false if there is none.
  bool FindDevice(Address address, Range* range) const;
  bool FindPinned(Address address, Range* range) const;

  // Where the data of an address is: in a shadow, or the host memory itself. Aborts with a sentence
  // if it is device memory that is not allocated or ends before `bytes`. `use` says what for.
  Bytes Resolve(Address address, size_t bytes, const char* use) const;

  size_t FreeBytes(int device) const;
  static size_t TotalBytes();

 private:
  struct Allocation {
    size_t bytes = 0;
    int device = 0;
    bool freed = false;
    std::shared_ptr<char> shadow;
  };
  struct Pinned {
    size_t bytes = 0;
    bool own = false;  // made by AllocatePinned
  };

  mutable std::mutex mutex_;
  std::map<Address, Allocation> allocations_;  // guarded by mutex_; freed ones stay
  std::map<Address, Pinned> pinned_;           // guarded by mutex_
  size_t used_[kMaxDevices] = {};              // guarded by mutex_
};

}  // namespace fake_cuda

#endif  // TFRING_TESTS_FAKES_CUDA_MEMORY_H_
