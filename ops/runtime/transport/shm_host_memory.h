#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SHM_HOST_MEMORY_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SHM_HOST_MEMORY_H_

#include <atomic>
#include <functional>
#include <vector>

#include "ops/runtime/interfaces/host_memory.h"
#include "ops/runtime/transport/shm_segment.h"

namespace tfring {

// HostMemory in the segments of a ShmDataTransport, which owns the segments and this object.
class ShmHostMemory final : public HostMemory {
 public:
  struct Member {
    Rank rank = kNoRank;
    ShmSegment* segment = nullptr;
  };

  // `members` includes this rank, in any order.
  ShmHostMemory(Rank self, std::vector<Member> members, const std::atomic<bool>* interrupted);

  const std::vector<Rank>& ranks() const override { return ranks_; }
  char* PartOf(Rank rank) const override { return SegmentOf(rank)->part(); }
  void Notify(Rank rank) override { SegmentOf(rank)->WakeOwner(self_); }
  void Sleep(Rank awaited, const std::function<bool()>& ready, TimePoint deadline) override;
  bool Closed(Rank rank) const override;

 private:
  ShmSegment* SegmentOf(Rank rank) const { return segments_[static_cast<size_t>(rank)]; }

  const Rank self_;
  const std::atomic<bool>* const interrupted_;
  std::vector<Rank> ranks_;
  std::vector<ShmSegment*> segments_;  // by rank; null for ranks of other hosts
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SHM_HOST_MEMORY_H_
