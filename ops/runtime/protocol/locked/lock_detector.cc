#include "ops/runtime/protocol/locked/lock_detector.h"

#include <algorithm>
#include <set>
#include <utility>

namespace tfring {
namespace {

// Writes into `labels`, by place in `round`, in which batch of `fusion` the id is. An id that is
// there several times is so in both.
void AddLabels(const LockedBatch& round, const std::vector<LockedBatch>& fusion,
               std::vector<std::vector<size_t>>* labels) {
  std::vector<std::pair<uint32_t, size_t>> places;
  std::vector<std::pair<uint32_t, size_t>> batches;
  for (size_t i = 0; i < round.size(); ++i) places.emplace_back(round[i], i);
  for (size_t i = 0; i < fusion.size(); ++i) {
    for (uint32_t id : fusion[i]) batches.emplace_back(id, i);
  }
  std::sort(places.begin(), places.end());
  std::sort(batches.begin(), batches.end());
  for (size_t i = 0; i < places.size(); ++i) {
    (*labels)[places[i].second].push_back(batches[i].second);
  }
}

// A round whose ids are fused where they are in all the fusions, which have the same ids. Batches
// are in the order of their last ids: that is when they can begin.
std::vector<LockedBatch> FuseAs(const std::vector<LockedBatch>& round,
                                const std::vector<const std::vector<LockedBatch>*>& fusions) {
  LockedBatch ids;
  for (const LockedBatch& batch : round) ids.insert(ids.end(), batch.begin(), batch.end());
  std::vector<std::vector<size_t>> labels(ids.size());
  for (const auto* fusion : fusions) AddLabels(ids, *fusion, &labels);
  std::map<std::vector<size_t>, size_t> from_end;  // by labels
  for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
    from_end.emplace(*label, from_end.size());
  }
  std::vector<LockedBatch> batches(from_end.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    batches[batches.size() - 1 - from_end[labels[i]]].push_back(ids[i]);
  }
  return batches;
}

}  // namespace

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
  std::map<LockedBatch, std::vector<LockedBatch>> fused;
  const bool again = IsLastLock(segments);
  size_t count = 0;
  const size_t first = segments_.size() - segments;
  for (size_t i = first; i < segments_.size(); ++i) count += segments_[i].ids.size();
  if (count > kMaxIds) return {};
  for (size_t i = first; i < segments_.size(); ++i) {
    std::vector<LockedBatch> fusion = FusionOf(i, segments, again);
    batches.insert(batches.end(), fusion.begin(), fusion.end());
    ids.push_back(segments_[i].ids);
    fused[segments_[i].ids] = std::move(fusion);
  }
  const bool enough = again || matched_ >= (kFusedRounds - 1) * segments;
  if (!enough && batches.size() < count) return {};
  std::sort(ids.begin(), ids.end());
  last_lock_ = std::move(ids);
  fused_ = std::move(fused);
  locked_batches_ = batches.size();
  Clear();
  return batches;
}

// Returns how a segment is to be fused in a lock that repeats the last `segments` of them.
std::vector<LockedBatch> LockDetector::FusionOf(size_t segment, size_t segments, bool again) const {
  const Segment& last = segments_[segment];
  if (again) return FuseAs(last.batches, {&fused_.at(last.ids)});
  std::vector<const std::vector<LockedBatch>*> fusions;
  const uint64_t rounds = 1 + std::min<uint64_t>(matched_, segment) / segments;
  for (uint64_t round = 0; round < std::min(rounds, kFusedRounds); ++round) {
    fusions.push_back(&segments_[segment - round * segments].batches);
  }
  return FuseAs(last.batches, fusions);
}

void LockDetector::OnUnlock(uint64_t entered, const LockedBatch& early) {
  const std::set<uint32_t> before(early.begin(), early.end());
  for (auto& of_segment : fused_) {
    std::vector<LockedBatch> cut;
    for (LockedBatch& batch : of_segment.second) {
      const auto is_early = [&](uint32_t id) { return before.count(id) > 0; };
      const auto late = std::stable_partition(batch.begin(), batch.end(), is_early);
      if (late != batch.begin()) cut.emplace_back(batch.begin(), late);
      if (late != batch.end()) cut.emplace_back(late, batch.end());
    }
    of_segment.second = std::move(cut);
  }
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
