#include "ops/runtime/protocol/locked/locked_schedule.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tfring {

LockedSchedule::LockedSchedule(uint64_t id, std::vector<LockedBatch> batches)
    : id_(id), batches_(std::move(batches)), spreads_(batches_.size()) {
  for (const LockedBatch& batch : batches_) {
    for (uint32_t cache_id : batch) calls_[cache_id] = {};
  }
  CountMissing();
}

void LockedSchedule::OnCall(uint32_t cache_id, TimePoint now) {
  OfId& call = calls_.at(cache_id);
  call.waits = true;
  call.since = now;
  if (!waits()) ++activity_;
  ++waiting_;
  if (call.due == entered_) --missing_;
}

std::optional<uint64_t> LockedSchedule::Enter(TimePoint now) {
  if (frozen_ || missing_ > 0) return std::nullopt;
  TimePoint first = now;
  for (uint32_t cache_id : batch(entered_)) {
    OfId& call = calls_.at(cache_id);
    call.waits = false;
    first = std::min(first, call.since);
  }
  WatchSpread(std::max(first, last_entry_), now);
  last_entry_ = now;
  waiting_ -= batch(entered_).size();
  ++running_;
  ++activity_;
  const uint64_t number = entered_++;
  CountMissing();
  return number;
}

// The next batch could have begun at `first` with a part of its calls.
void LockedSchedule::WatchSpread(TimePoint first, TimePoint now) {
  Spread& spread = spreads_[entered_ % batches_.size()];
  if (now - first < kApart) {
    spread = {};
    return;
  }
  const auto is_early = [&](uint32_t id) {
    return calls_.at(id).since < first + (now - first) / 2;
  };
  LockedBatch early;
  const LockedBatch& before = spread.rounds == 0 ? batch(entered_) : spread.early;
  std::copy_if(before.begin(), before.end(), std::back_inserter(early), is_early);
  spread.rounds = early.empty() ? 0 : spread.rounds + 1;
  spread.early = std::move(early);
}

LockedBatch LockedSchedule::Apart() const {
  if (entered_ == 0) return {};
  const Spread& spread = spreads_[(entered_ - 1) % batches_.size()];
  return spread.rounds < kApartRounds ? LockedBatch() : spread.early;
}

void LockedSchedule::CountMissing() {
  missing_ = 0;
  for (uint32_t cache_id : batch(entered_)) {
    OfId& call = calls_.at(cache_id);
    call.due = entered_;
    missing_ += call.waits ? 0 : 1;
  }
}

void LockTimer::Update(const LockedSchedule* lock, TimePoint now) {
  const bool waits = lock != nullptr && lock->waits();
  const bool same = waits && waits_ && lock->id() == lock_ && lock->activity() == activity_;
  waits_ = waits;
  if (!waits || same) return;
  lock_ = lock->id();
  activity_ = lock->activity();
  since_ = now;
}

bool LockTimer::Expired(TimePoint now, int64_t progress) {
  if (now < deadline()) return false;
  if (progress == progress_) return true;
  progress_ = progress;
  since_ = now;
  return false;
}

}  // namespace tfring
