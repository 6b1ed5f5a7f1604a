#include "ops/runtime/protocol/locked/locked_schedule.h"

#include <utility>

namespace tfring {

LockedSchedule::LockedSchedule(uint64_t id, std::vector<LockedBatch> batches)
    : id_(id), batches_(std::move(batches)) {
  for (const LockedBatch& batch : batches_) {
    for (uint32_t cache_id : batch) calls_[cache_id] = {};
  }
  CountMissing();
}

void LockedSchedule::OnCall(uint32_t cache_id) {
  OfId& call = calls_.at(cache_id);
  call.waits = true;
  if (!waits()) ++activity_;
  ++waiting_;
  if (call.due == entered_) --missing_;
}

std::optional<uint64_t> LockedSchedule::Enter() {
  if (frozen_ || missing_ > 0) return std::nullopt;
  for (uint32_t cache_id : batch(entered_)) calls_.at(cache_id).waits = false;
  waiting_ -= batch(entered_).size();
  ++running_;
  ++activity_;
  const uint64_t number = entered_++;
  CountMissing();
  return number;
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
