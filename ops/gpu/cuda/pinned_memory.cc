#include "ops/gpu/cuda/pinned_memory.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tfring {
namespace {

constexpr size_t kSmallest = 4096;

// Rounds up by at most one eighth, so that there are few sizes and large blocks waste little.
size_t RoundUp(size_t bytes) {
  size_t power = kSmallest;
  while (power < bytes) power *= 2;
  const size_t step = std::max(kSmallest, power / 16);
  return std::max(kSmallest, (bytes + step - 1) / step * step);
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<CudaDevice> device, int64_t limit)
    : device_(std::move(device)), limit_(limit) {}

PinnedMemory::~PinnedMemory() {
  const ScopedContext current(device_.get());
  if (!current.status().ok()) return;
  for (const auto& [size, block] : free_) device_->cu().MemFreeHost(block);
}

Result<std::shared_ptr<void>> PinnedMemory::Take(int64_t bytes) {
  const size_t size = RoundUp(static_cast<size_t>(bytes));
  void* block = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = free_.find(size);
    if (it != free_.end()) {
      block = it->second;
      free_.erase(it);
    }
  }
  if (block == nullptr) {
    Result<void*> made = Allocate(size);
    if (!made.ok()) return made.status();
    block = *made;
  }
  return std::shared_ptr<void>(
      block, [self = shared_from_this(), size](void* memory) { self->Return(size, memory); });
}

Result<void*> PinnedMemory::Allocate(size_t size) {
  MakeRoom(size);
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  const std::string doing = "allocating " + std::to_string(size) + " bytes of pinned CPU memory";
  void* block = nullptr;
  CuResult result = device_->cu().MemHostAlloc(&block, size, 0);
  if (result == kCudaOutOfMemory && MakeRoom(static_cast<size_t>(limit_))) {
    result = device_->cu().MemHostAlloc(&block, size, 0);
  }
  TFRING_RETURN_IF_ERROR(device_->Check(result, doing.c_str()));
  std::lock_guard<std::mutex> lock(mutex_);
  allocated_ += static_cast<int64_t>(size);
  return block;
}

// Frees unused blocks until `size` more bytes fit into the limit. False if no block is unused.
bool PinnedMemory::MakeRoom(size_t size) {
  std::multimap<size_t, void*> unused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    while (!free_.empty() && allocated_ + static_cast<int64_t>(size) > limit_) {
      const auto largest = std::prev(free_.end());
      allocated_ -= static_cast<int64_t>(largest->first);
      unused.insert(free_.extract(largest));
    }
  }
  if (unused.empty()) return false;
  const ScopedContext current(device_.get());
  for (const auto& [bytes, block] : unused) device_->cu().MemFreeHost(block);
  return true;
}

void PinnedMemory::Return(size_t size, void* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.emplace(size, block);
}

int64_t PinnedMemory::allocated() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return allocated_;
}

}  // namespace tfring
