// How a ScheduleRunner waits, and what it reports about its waits.
#include <utility>
#include <vector>

#include "ops/runtime/backend/schedule/runner.h"
#include "ops/runtime/base/clock.h"

namespace tfring {

Status ScheduleRunner::WaitForPeers() {
  SpinPolicy& spins = data_has_come_ ? spins_between_data_ : spins_before_data_;
  if (spins.ShouldSpin()) {
    Result<bool> moved = Spin();
    if (!moved.ok()) return moved.status();
    spins.Spun(*moved);
    if (*moved) return OkStatus();
  }
  FillWaitSet();
  const TimePoint now = MonotonicNow();
  wait_set_.deadline = watch_.Sleep(now);
  MarkWait(now);
  std::optional<BrokenStream> broken = transport_->Wait(wait_set_);
  if (marks_ != nullptr) marks_->waits_since.store(0, std::memory_order_relaxed);
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  if (broken) {
    suspect_ = broken->peer;
    return broken->status;
  }
  return wait_set_.deadline == kNever ? OkStatus() : CheckProgress();
}

void ScheduleRunner::FillWaitSet() {
  wait_set_.readable.clear();
  wait_set_.writable.clear();
  wait_set_.watched.clear();
  wait_set_.sent = done();
  for (const Lane& lane : recvs_) {
    const Rank peer = (*members_)[lane.peer];
    if (HeadReady(lane)) wait_set_.readable.push_back(peer);
    if (!Finished(lane)) wait_set_.watched.push_back(peer);
  }
  for (const Lane& lane : sends_) {
    const Rank peer = (*members_)[lane.peer];
    if (HeadReady(lane)) wait_set_.writable.push_back(peer);
    // The sent bytes have not arrived yet. A peer that has all its bytes may close the stream.
    if (!Finished(lane) || transport_->Unacknowledged(peer)) wait_set_.watched.push_back(peer);
  }
}

// Notes the first stream that a ready step needs. Receives come before sends.
void ScheduleRunner::MarkWait(TimePoint now) {
  if (marks_ == nullptr) return;
  for (const std::vector<Lane>* lanes : {&recvs_, &sends_}) {
    for (const Lane& lane : *lanes) {
      if (!HeadReady(lane)) continue;
      const int64_t bytes = StepBytes(schedule_->steps[lane.steps[lane.head]]) - lane.moved;
      marks_->waits_peer.store((*members_)[lane.peer], std::memory_order_relaxed);
      marks_->waits_receives.store(lanes == &recvs_ ? 1 : 0, std::memory_order_relaxed);
      marks_->waits_bytes.store(bytes, std::memory_order_relaxed);
      marks_->waits_since.store(now - watch_.quiet(now), std::memory_order_relaxed);
      return;
    }
  }
}

Status ScheduleRunner::CheckProgress() {
  const TimePoint now = MonotonicNow();
  if (!watch_.Due(now)) return OkStatus();
  // The stream may have moved while this thread was late.
  Result<bool> moved = Advance();
  if (!moved.ok()) return moved.status();
  if (*moved || (done() && !transport_->Sending())) return OkStatus();
  bool trouble = false;
  for (const Wait& wait : Waits()) trouble |= !wait.trouble.empty();
  const ProgressWatch::Verdict verdict = watch_.Judge(now, trouble);
  if (verdict == ProgressWatch::Verdict::kGoOn) return OkStatus();
  return quiet_hook_(verdict, watch_.quiet(now));
}

std::vector<ScheduleRunner::Wait> ScheduleRunner::Waits() const {
  std::vector<Wait> waits;
  const auto add = [&](const Lane& lane, bool receives) {
    Wait wait{(*members_)[lane.peer], receives, 0, transport_->PathTrouble((*members_)[lane.peer])};
    if (HeadReady(lane)) {
      wait.bytes = StepBytes(schedule_->steps[lane.steps[lane.head]]) - lane.moved;
    }
    // All steps are done, and the transport still holds the last sent bytes.
    if (done() && !receives && transport_->Unacknowledged(wait.peer)) {
      wait.bytes = StepBytes(schedule_->steps[lane.steps.back()]);
    }
    // On a stream that carries both ways, the direction without a step adds nothing.
    if (wait.bytes > 0 || !wait.trouble.empty()) waits.push_back(std::move(wait));
  };
  for (const Lane& lane : recvs_) add(lane, true);
  for (const Lane& lane : sends_) add(lane, false);
  return waits;
}

Result<bool> ScheduleRunner::Spin() {
  return SpinPolicy::Wait(SpinPolicy::kWaitTime, [this]() -> Result<bool> {
    if (poison_->load(std::memory_order_acquire)) return true;
    Result<bool> moved = Advance();
    if (moved.ok() && !*moved) return done() && !transport_->Sending();
    return moved;
  });
}

}  // namespace tfring
