#include <utility>

#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "ops/runtime/protocol/negotiation/sequencer.h"

// Locks: see docs/adr/0045-locked-schedule.md.
namespace tfring {

void Negotiator::OnLockFrame(Rank from, FrameType type, const LockMessage& message) {
  switch (type) {
    case FrameType::kLock:
      return FailPeer(from, participant_.OnLock(message, now_));
    case FrameType::kStop:
      return FailPeer(from, participant_.locked().OnStop(message));
    case FrameType::kUnlock:
      return FailPeer(from, EndOwnLock(message));
    default:
      return OnFrozen(from, message);
  }
}

// Rank 0: all ranks get the lock behind the plans that were numbered before it.
void Negotiator::StartLock(const LockMessage& lock) {
  coordinator_->Start(lock.id);
  SendToOthers(FrameType::kLock, lock);
  FailPeer(0, participant_.OnLock(lock, now_));
}

// Rank 0: with the first rank that freezes, all have to.
void Negotiator::OnFrozen(Rank from, const LockMessage& message) {
  const bool first = !coordinator_->any_frozen();
  const Status status = coordinator_->OnFrozen(from, message);
  if (!status.ok()) return FailPeer(from, status);
  if (first) {
    LockMessage stop;
    stop.id = message.id;
    SendToOthers(FrameType::kStop, stop);
    participant_.locked().Stop({});
    PassOwnRequests();
  }
  if (const auto unlock = coordinator_->TakeUnlock()) Unlock(*unlock);
}

void Negotiator::Unlock(const LockMessage& unlock) {
  SendToOthers(FrameType::kUnlock, unlock);
  FailPeer(0, EndOwnLock(unlock));
  if (dead_) return;
  FailPeer(0, sequencer_->OnUnlock(unlock, *coordinator_, now_));
  PassOwnRequests();
}

Status Negotiator::EndOwnLock(const LockMessage& unlock) {
  TakeEntered();
  recalled_.emplace();
  return participant_.OnUnlock(unlock, &*recalled_);
}

void Negotiator::SendToOthers(FrameType type, const LockMessage& message) {
  Frame frame;
  frame.type = type;
  frame.lock = message;
  const std::string bytes = EncodeFrame(frame);
  for (Rank rank = 1; rank < size_; ++rank) {
    const bool knows = type == FrameType::kStop && coordinator_->frozen(rank);
    if (!knows) out_.frames.emplace_back(rank, bytes);
  }
}

void Negotiator::StopLock(UnlockReason reason, TimePoint now) {
  now_ = now;
  participant_.locked().Stop(std::move(reason));
  if (sequencer_ && !dead_) PassOwnRequests();
}

void Negotiator::TakeEntered() {
  for (PlanRun& run : participant_.locked().TakeRuns()) out_.runs.push_back(std::move(run));
}

}  // namespace tfring
