#include "ops/runtime/backend/arena/arena_allreduce.h"

#include <algorithm>

namespace tfring {
void ArenaAllreduce::Start(int64_t bytes) {
  bytes_ = bytes;
  blocks_ = (bytes + kArenaBlockBytes - 1) / kArenaBlockBytes;
  staged_ = 0;
  reduced_ = 0;
  copied_ = 0;
  inputs_.assign(static_cast<size_t>(group_.size()), nullptr);
}

int64_t ArenaAllreduce::BlockBytes(int64_t block) const {
  return std::min(kArenaBlockBytes, bytes_ - block * kArenaBlockBytes);
}

ArenaAllreduce::Slice ArenaAllreduce::SliceOf(int64_t block, int member) const {
  const int64_t bytes = BlockBytes(block);
  const int64_t members = group_.size();
  const int64_t each = ((bytes + members - 1) / members + kArenaLine - 1) / kArenaLine * kArenaLine;
  const int64_t begin = std::min(bytes, each * member);
  return {begin, std::min(each, bytes - begin)};
}

bool ArenaAllreduce::MayStage() const {
  return staged_ < blocks_ && staged_ < copied_ + kArenaDepth;
}

bool ArenaAllreduce::MayReduce() const {
  return reduced_ < staged_ && group_.OthersHave(&ArenaProgress::staged, reduced_ + 1);
}

bool ArenaAllreduce::MayCopy() const {
  return copied_ < reduced_ && group_.OthersHave(&ArenaProgress::reduced, copied_ + 1);
}

// The oldest block first: it is nearest in the caches.
void ArenaAllreduce::Move(bool met) {
  if (met && MayCopy()) {
    Copy();
  } else if (met && MayReduce()) {
    Reduce();
  } else if (MayStage()) {
    Stage();
  }
}

void ArenaAllreduce::Stage() {
  const int64_t begin = staged_ * kArenaBlockBytes;
  const Slice own = SliceOf(staged_, group_.self());
  const int64_t after = own.offset + own.bytes;
  char* to = group_.own().staged(staged_);
  data_.Stage(begin, own.offset, to);
  data_.Stage(begin + after, BlockBytes(staged_) - after, to + after);
  ++staged_;
  group_.ShowProgress(&ArenaProgress::staged, staged_);
}

void ArenaAllreduce::Reduce() {
  const Slice own = SliceOf(reduced_, group_.self());
  for (int m = 0; m < group_.size(); ++m) {
    inputs_[m] = group_.of(m).staged(reduced_) + own.offset;
  }
  const int64_t begin = reduced_ * kArenaBlockBytes + own.offset;
  data_.Reduce(begin, begin, own.bytes, inputs_, group_.own().result(reduced_));
  ++reduced_;
  group_.ShowProgress(&ArenaProgress::reduced, reduced_);
}

void ArenaAllreduce::Copy() {
  for (int m = 0; m < group_.size(); ++m) {
    if (m == group_.self()) continue;
    const Slice slice = SliceOf(copied_, m);
    data_.Store(copied_ * kArenaBlockBytes + slice.offset, slice.bytes,
                group_.of(m).result(copied_));
  }
  ++copied_;
}

// A member that has to stage or reduce a block for which it needs no more from this rank, which has
// got further itself.
Rank ArenaAllreduce::Awaited() const {
  return copied_ < reduced_ ? group_.FirstBelow(&ArenaProgress::reduced, copied_ + 1)
                            : group_.FirstBelow(&ArenaProgress::staged, reduced_ + 1);
}

void ArenaAllreduce::AddWaits(std::vector<ArenaWait>* waits) const {
  const int64_t left = std::max<int64_t>(bytes_ - copied_ * kArenaBlockBytes, 1);
  for (int m = 0; m < group_.size(); ++m) {
    if (m == group_.self()) continue;
    const bool awaited =
        (copied_ < reduced_ && !group_.Has(m, &ArenaProgress::reduced, copied_ + 1)) ||
        (reduced_ < staged_ && !group_.Has(m, &ArenaProgress::staged, reduced_ + 1));
    if (awaited) waits->push_back({group_.rank(m), left, true});
  }
}

int64_t ArenaAllreduce::BytesTo(int member) const {
  const auto with = [&](int64_t block) {
    return SliceOf(block, member).bytes + SliceOf(block, group_.self()).bytes;
  };
  return (blocks_ - 1) * with(0) + with(blocks_ - 1);
}

}  // namespace tfring
