#include "ops/runtime/protocol/tree/merge_queue.h"

#include <utility>

namespace tfring {

MergeQueue::Entry* MergeQueue::Add(MergedFrame frame, TimePoint now) {
  Entry* equal = nullptr;  // the first behind all of these ranks
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->frame.ranks.Intersects(frame.ranks)) break;
    if (entry->frame.digest == frame.digest) equal = &*entry;
  }
  if (equal == nullptr) {
    entries_.push_back({std::move(frame), {}, now, false});
    return &entries_.back();
  }
  equal->frame.ranks.Add(frame.ranks);
  if (equal->frame.bytes == nullptr) equal->frame.bytes = std::move(frame.bytes);
  return equal;
}

size_t MergeQueue::CountComplete(int64_t ranks) const {
  RankSet behind;
  int64_t frames = 0;
  for (const Entry& entry : entries_) frames += entry.frame.ranks.size();
  for (size_t count = entries_.size(); count > 0; --count) {
    behind.Add(entries_[count - 1].frame.ranks);
    if (behind.size() < ranks) continue;
    return frames == ranks ? entries_.size() : count;
  }
  return 0;
}

MergeQueue::Entry MergeQueue::TakeFront() {
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  return entry;
}

}  // namespace tfring
