#include "tests/fakes/cuda/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The entry of a map of ranges whose begin is at or below an address; end() if there is none.
template <typename Map>
auto AtOrBelow(Map& map, Address address) {
  auto entry = map.upper_bound(address);
  return entry == map.begin() ? map.end() : std::prev(entry);
}

}  // namespace

Memory& Memory::Get() {
  static Memory* memory = new Memory;
  return *memory;
}

size_t Memory::TotalBytes() {
  return static_cast<size_t>(fake_cuda::Get(Setting::kMemoryMib)) << 20;
}

size_t Memory::FreeBytes(int device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t total = TotalBytes();
  return used_[device] < total ? total - used_[device] : 0;
}

Result Memory::Allocate(int device, size_t bytes, Address* address) {
  if (bytes == 0) return kInvalidValue;
  if (Strikes(Fault::kOutOfMemory, device) || bytes > FreeBytes(device)) return kOutOfMemory;
  // One page more than needed: the next allocation does not begin where this one ends.
  void* range = mmap(nullptr, RoundUp(bytes, kPage) + kPage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  auto* shadow = static_cast<char*>(std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment)));
  if (range == MAP_FAILED || shadow == nullptr) return kOutOfMemory;
  std::memset(shadow, kFreshPoison, bytes);
  const auto drop = [bytes](char* data) {
    std::memset(data, kFreedPoison, bytes);
    std::free(data);
  };
  *address = reinterpret_cast<Address>(range);
  const std::lock_guard<std::mutex> lock(mutex_);
  used_[device] += bytes;
  allocations_[*address] = {bytes, device, false, std::shared_ptr<char>(shadow, drop)};
  return kSuccess;
}

Result Memory::Free(Address address) {
  std::shared_ptr<char> shadow;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = allocations_.find(address);
  if (entry == allocations_.end()) return kInvalidValue;
  Allocation& allocation = entry->second;
  if (allocation.freed) Die("the device memory at %#llx is freed twice", address);
  allocation.freed = true;
  shadow.swap(allocation.shadow);
  used_[allocation.device] -= allocation.bytes;
  return kSuccess;
}

void* Memory::AllocatePinned(size_t bytes) {
  void* data = std::aligned_alloc(kPage, RoundUp(bytes == 0 ? 1 : bytes, kPage));
  if (data == nullptr) return nullptr;
  std::memset(data, kFreshPoison, bytes);
  Count(Counter::kLivePinned);
  const std::lock_guard<std::mutex> lock(mutex_);
  pinned_[reinterpret_cast<Address>(data)] = {bytes, true};
  return data;
}

void Memory::FreePinned(void* data) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = pinned_.find(reinterpret_cast<Address>(data));
    if (entry == pinned_.end() || !entry->second.own) {
      Die("%p is freed as pinned memory, but was not allocated as such or is freed already", data);
    }
    std::memset(data, kFreedPoison, entry->second.bytes);
    pinned_.erase(entry);
  }
  Count(Counter::kLivePinned, -1);
  std::free(data);
}

Result Memory::RegisterPinned(void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto added = pinned_.emplace(reinterpret_cast<Address>(data), Pinned{bytes, false});
  if (!added.second) return kHostMemoryAlreadyRegistered;
  Count(Counter::kLivePinned);
  return kSuccess;
}

Result Memory::UnregisterPinned(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pinned_.erase(reinterpret_cast<Address>(data)) == 0) return kHostMemoryNotRegistered;
  Count(Counter::kLivePinned, -1);
  return kSuccess;
}

bool Memory::FindDevice(Address address, Range* range) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = AtOrBelow(allocations_, address);
  if (entry == allocations_.end() || entry->second.freed) return false;
  if (address - entry->first >= entry->second.bytes) return false;
  *range = {entry->first, entry->second.bytes, entry->second.device};
  return true;
}

bool Memory::FindPinned(Address address, Range* range) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = AtOrBelow(pinned_, address);
  if (entry == pinned_.end() || address - entry->first >= entry->second.bytes) return false;
  *range = {entry->first, entry->second.bytes, 0};
  return true;
}

Bytes Memory::Resolve(Address address, size_t bytes, const char* use) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = AtOrBelow(allocations_, address);
  if (entry == allocations_.end() ||
      address - entry->first >= RoundUp(entry->second.bytes, kPage) + kPage) {
    return {nullptr, reinterpret_cast<char*>(address)};  // host memory
  }
  const Allocation& allocation = entry->second;
  const size_t offset = address - entry->first;
  if (allocation.freed) {
    Die("%s of %zu bytes at %#llx: this device memory (%zu bytes at %#llx) has been freed", use,
        bytes, address, allocation.bytes, entry->first);
  }
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) {
    Die("%s of %zu bytes at %#llx reaches beyond its device memory (%zu bytes at %#llx)", use,
        bytes, address, allocation.bytes, entry->first);
  }
  return {allocation.shadow, allocation.shadow.get() + offset};
}

}  // namespace fake_cuda

FAKE_CUDA_API void* FakeCudaView(unsigned long long address, size_t bytes) {
  return fake_cuda::Memory::Get().Resolve(address, bytes, "a use").data;
}
