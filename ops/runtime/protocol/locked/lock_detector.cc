#include "ops/runtime/protocol/locked/lock_detector.h"

#include <algorithm>
#include <utility>

namespace tfring {

void LockDetector::OnPlan(LockedBatch ids) {
  present_ids_ += ids.size();
  if (present_ids_ > kMaxIds) {
    odd_ = true;
    present_.clear();
  } else {
    present_.push_back(std::move(ids));
  }
}

std::vector<LockedBatch> LockDetector::OnQuiet() {
  const bool odd = std::exchange(odd_, false);
  Segment segment;
  segment.batches = std::exchange(present_, {});
  present_ids_ = 0;
  if (odd) Clear();
  if (odd || segment.batches.empty()) return {};
  for (const LockedBatch& batch : segment.batches) {
    segment.ids.insert(segment.ids.end(), batch.begin(), batch.end());
  }
  std::sort(segment.ids.begin(), segment.ids.end());
  Add(std::move(segment));
  const uint64_t again = std::max<uint64_t>(1, needed_ / kRounds);
  if (again == 1 && IsLastLock(last_lock_.size())) return Lock(last_lock_.size());
  if (period_ == 0) return {};
  const uint64_t needed = IsLastLock(period_) ? again : needed_;
  return matched_ >= (needed - 1) * period_ ? Lock(period_) : std::vector<LockedBatch>();
}

void LockDetector::Add(Segment segment) {
  const auto equals = [&](size_t before) {
    return before > 0 && before <= segments_.size() &&
           segments_[segments_.size() - before].ids == segment.ids;
  };
  if (equals(period_)) {
    ++matched_;
  } else {
    const auto last = last_seen_.find(segment.ids);
    const uint64_t distance = last == last_seen_.end() ? 0 : seen_ - last->second;
    period_ = equals(static_cast<size_t>(distance)) ? static_cast<size_t>(distance) : 0;
    matched_ = period_ == 0 ? 0 : 1;
  }
  if (last_seen_.size() >= 2 * kMaxSegments) last_seen_.clear();
  last_seen_[segment.ids] = seen_++;
  segments_.push_back(std::move(segment));
  if (segments_.size() > kMaxSegments) segments_.pop_front();
}

// Whether the last segments are those of the last lock, in any order.
bool LockDetector::IsLastLock(size_t segments) const {
  if (segments == 0 || segments != last_lock_.size() || segments > segments_.size()) return false;
  std::vector<LockedBatch> ids;
  for (size_t i = segments_.size() - segments; i < segments_.size(); ++i) {
    ids.push_back(segments_[i].ids);
  }
  std::sort(ids.begin(), ids.end());
  return ids == last_lock_;
}

// Locks the last segments.
std::vector<LockedBatch> LockDetector::Lock(size_t segments) {
  std::vector<LockedBatch> batches;
  std::vector<LockedBatch> ids;
  size_t count = 0;
  for (size_t i = segments_.size() - segments; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    batches.insert(batches.end(), segment.batches.begin(), segment.batches.end());
    ids.push_back(segment.ids);
    count += segment.ids.size();
  }
  if (count > kMaxIds) return {};
  std::sort(ids.begin(), ids.end());
  last_lock_ = std::move(ids);
  locked_batches_ = batches.size();
  Clear();
  return batches;
}

void LockDetector::OnUnlock(uint64_t entered) {
  const bool lasted = entered / std::max<size_t>(1, locked_batches_) >= needed_;
  needed_ = lasted ? kRounds : std::min(kMaxNeeded, 2 * needed_);
}

void LockDetector::Clear() {
  segments_.clear();
  last_seen_.clear();
  period_ = 0;
  matched_ = 0;
}

}  // namespace tfring
