#include "ops/runtime/transport/shm_host_memory.h"

#include <algorithm>

namespace tfring {

ShmHostMemory::ShmHostMemory(Rank self, std::vector<Member> members,
                             const std::atomic<bool>* interrupted)
    : self_(self), interrupted_(interrupted) {
  for (const Member& member : members) {
    const auto index = static_cast<size_t>(member.rank);
    if (segments_.size() <= index) segments_.resize(index + 1);
    segments_[index] = member.segment;
    ranks_.push_back(member.rank);
  }
  std::sort(ranks_.begin(), ranks_.end());
}

void ShmHostMemory::Sleep(Rank awaited, const std::function<bool()>& ready, TimePoint deadline) {
  const ShmSegment* own = SegmentOf(self_);
  ShmHeader* header = own->header();
  const uint32_t seen = header->doorbell.load(std::memory_order_seq_cst);
  header->awaited.store(awaited, std::memory_order_seq_cst);
  header->sleep.store(ShmSleep::kOnFutex, std::memory_order_seq_cst);
  // A rank that changed its part before it saw `sleep` did not wake this one.
  if (!interrupted_->load(std::memory_order_seq_cst) && !ready()) {
    own->SleepOnFutex(seen, deadline);
  }
  header->sleep.store(ShmSleep::kAwake, std::memory_order_seq_cst);
}

bool ShmHostMemory::Closed(Rank rank) const {
  return SegmentOf(rank)->header()->owner_closed.load(std::memory_order_seq_cst) != 0;
}

}  // namespace tfring
