#include "ops/runtime/backend/arena/arena_runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/interfaces/plan_marks.h"

namespace tfring {

void ArenaRunner::Watch(ProgressWatch watch, ScheduleRunner::QuietHook hook) {
  watch_ = watch;
  quiet_hook_ = std::move(hook);
}

void ArenaRunner::Start(const Collective& collective, const Reduction& reduction) {
  collective_ = &collective;
  if (failed_) return;
  suspect_ = kNoRank;
  watch_.Moved();
  machine_.Start(collective, reduction);
}

Result<bool> ArenaRunner::Run(TimePoint until) {
  if (failed_) return Cancelled("a collective before this one has failed");
  failed_ = true;
  Result<bool> ended = RunToEnd(until);
  if (!ended.ok()) return ended;
  failed_ = false;
  if (*ended && !machine_.recalled()) NoteTraffic();
  return ended;
}

Result<bool> ArenaRunner::RunToEnd(TimePoint until) {
  while (!machine_.done()) {
    if (poison_->load(std::memory_order_acquire)) return Cancelled("interrupted");
    Result<bool> moved = Advance();
    if (!moved.ok()) return moved;
    if (*moved) continue;
    if (until == kNever) {
      TFRING_RETURN_IF_ERROR(WaitForRanks());
      continue;
    }
    if (!spins_as_caller_.ShouldSpin()) return false;
    moved = Spin(until - MonotonicNow());
    if (!moved.ok()) return moved;
    spins_as_caller_.Spun(*moved);
    if (!*moved) return false;
  }
  return true;
}

Result<bool> ArenaRunner::Advance() {
  Result<bool> moved = machine_.Advance();
  if (!moved.ok() || !*moved) return moved;
  watch_.Moved();
  moves_.fetch_add(1, std::memory_order_relaxed);
  return moved;
}

Result<bool> ArenaRunner::Spin(Duration limit) {
  return SpinPolicy::Wait(limit, [this]() -> Result<bool> {
    if (poison_->load(std::memory_order_acquire)) return true;
    return Advance();
  });
}

Status ArenaRunner::WaitForRanks() {
  SpinPolicy& spins = machine_.met() ? spins_after_ : spins_before_meeting_;
  if (spins.ShouldSpin()) {
    Result<bool> moved = Spin(SpinPolicy::kWaitTime);
    if (!moved.ok()) return moved.status();
    spins.Spun(*moved);
    if (*moved) return OkStatus();
  }
  // A member closes after it has shown all that others need of it.
  const Rank closed = machine_.ClosedMember();
  if (closed != kNoRank && !machine_.CanAdvance()) {
    suspect_ = closed;
    return Unavailable("rank " + std::to_string(closed) +
                       " closed its shared memory while this rank was waiting for it");
  }
  const TimePoint now = MonotonicNow();
  const TimePoint deadline = watch_.Sleep(now);
  MarkWait(now);
  const Rank awaited = machine_.Awaited();
  // Whoever was awaited may have done its part just now, and then does not wake this rank any more.
  memory_->Sleep(
      awaited,
      [this, awaited] {
        return machine_.CanAdvance() || machine_.Awaited() != awaited ||
               machine_.ClosedMember() != kNoRank;
      },
      deadline);
  if (collective_->marks != nullptr) {
    collective_->marks->waits_since.store(0, std::memory_order_relaxed);
  }
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  return deadline == kNever ? OkStatus() : CheckProgress();
}

Status ArenaRunner::CheckProgress() {
  const TimePoint now = MonotonicNow();
  if (!watch_.Due(now)) return OkStatus();
  // It may have moved just now, while this thread was late.
  Result<bool> moved = Advance();
  if (!moved.ok()) return moved.status();
  if (*moved) return OkStatus();
  const ProgressWatch::Verdict verdict = watch_.Judge(now, false);
  if (verdict == ProgressWatch::Verdict::kGoOn) return OkStatus();
  return quiet_hook_(verdict, watch_.quiet(now));
}

std::vector<ScheduleRunner::Wait> ArenaRunner::Waits() const {
  std::vector<ScheduleRunner::Wait> waits;
  for (const ArenaWait& wait : machine_.Waits()) {
    waits.push_back({wait.peer, wait.receives, wait.bytes, ""});
  }
  return waits;
}

void ArenaRunner::MarkWait(TimePoint now) {
  PlanMarks* marks = collective_->marks;
  if (marks == nullptr) return;
  const std::vector<ArenaWait> waits = machine_.Waits();
  if (waits.empty()) return;
  marks->waits_peer.store(waits[0].peer, std::memory_order_relaxed);
  marks->waits_receives.store(waits[0].receives ? 1 : 0, std::memory_order_relaxed);
  marks->waits_bytes.store(waits[0].bytes, std::memory_order_relaxed);
  marks->waits_since.store(now - watch_.quiet(now), std::memory_order_relaxed);
}

// What other members have read of this rank's arena counts as sent to them.
void ArenaRunner::NoteTraffic() {
  for (int m = 0; m < static_cast<int>(collective_->members.size()); ++m) {
    const int64_t bytes = m == collective_->self ? 0 : machine_.BytesTo(m);
    if (bytes == 0) continue;
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    if (collective_->traffic != nullptr) {
      collective_->traffic->SentTo(collective_->members[m], bytes);
    }
  }
}

}  // namespace tfring
