#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/runtime/protocol/engine/engine_impl.h"
#include "ops/runtime/protocol/message/nonce.h"

// The engine during a lock: see docs/adr/0045-locked-schedule.md.
namespace tfring {

// Rank 0 reads what ranks say about requests and goodbyes when the lock is over.
bool Engine::Impl::Keep(const ControlEvent& event, FrameType type) {
  if (negotiator_ == nullptr || rank_ != 0) return false;
  if (type == FrameType::kGoodbye) DrainNegotiator();  // what came before it may make a lock
  if (negotiator_ == nullptr || !negotiator_->locked()) return false;
  if (type != FrameType::kRequests && type != FrameType::kWithdraw && type != FrameType::kGoodbye) {
    return false;
  }
  kept_.push_back({event, !negotiator_->frozen(event.peer)});
  return true;
}

bool Engine::Impl::HasKeptGoodbye(Rank peer) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    std::string_view frame = kept.event.frame;
    return kept.event.peer == peer && kept.event.kind == ControlEvent::Kind::kFrame &&
           TakeNonce(nonce_, &frame).ok() && !frame.empty() &&
           static_cast<FrameType>(frame[0]) == FrameType::kGoodbye;
  });
}

// After a frame that may have ended the lock.
void Engine::Impl::ReadKept() {
  if (kept_.empty() || (negotiator_ != nullptr && negotiator_->locked())) return;
  std::vector<ControlEvent> events;
  for (Kept& kept : std::exchange(kept_, {})) {
    std::string_view frame = kept.event.frame;
    const bool dropped =
        kept.early && negotiator_ != nullptr && !negotiator_->declined(kept.event.peer) &&
        TakeNonce(nonce_, &frame).ok() && static_cast<FrameType>(frame[0]) == FrameType::kRequests;
    if (!dropped) events.push_back(std::move(kept.event));
  }
  for (const ControlEvent& event : events) OnControl(event);
}

// Not all members have entered the plan, so rank 0 says, or has said, that its calls wait again.
void Engine::Impl::OnRecalled(const Completion& completion) {
  const auto it = running_.find(completion.sequence);
  Running& plan = it->second;
  ReleaseBusy(completion.sequence);
  if (!completion.recalled && completion.status.ok()) {
    running_.erase(it);
    return EndOnError(Internal("plan " + std::to_string(completion.sequence) +
                               " of a lock ended on " + Name(rank_) +
                               ", although not all ranks have entered it"));
  }
  if (plan.is_void || negotiator_ == nullptr) {
    const std::vector<CallId> calls = std::move(plan.calls);
    const std::string what = plan.what;
    running_.erase(it);
    AddResults(calls, ended_.ok() ? closed_ : ended_);
    if (completion.status.ok() || aborted_) return;
    if (peers_.InRange(completion.suspect)) return OnBrokenConnection(completion, what);
    return EndOnError(completion.status);
  }
  plan.parked = true;
}

// From here on the calls of plans that were recalled wait, and no longer run.
void Engine::Impl::TakeRecalled() {
  const auto recalled = negotiator_->TakeRecalled();
  if (!recalled) return;
  for (uint64_t sequence : *recalled) Recall(sequence);
  HoldParked();
}

// The calls of the plan are with the negotiator now.
void Engine::Impl::Recall(uint64_t sequence) {
  const auto it = running_.find(sequence);
  if (it == running_.end()) return;
  if (it->second.parked) {
    running_.erase(it);
  } else {
    for (CallId id : it->second.calls) busy_[id] = sequence;
    it->second.calls.clear();
    it->second.is_void = true;
  }
}

void Engine::Impl::ReleaseBusy(uint64_t sequence) {
  for (auto it = busy_.begin(); it != busy_.end();) {
    it = it->second == sequence ? busy_.erase(it) : std::next(it);
  }
  for (auto& [id, status] : std::exchange(delayed_, {})) AddResults({id}, status);
}

// A plan of the lock came to nothing, and whether its calls wait again is decided with the lock.
void Engine::Impl::Park(uint64_t sequence, Running plan) {
  plan.parked = true;
  running_[sequence] = std::move(plan);
}

// The lock is over, and those that are parked still were not recalled: they failed.
void Engine::Impl::HoldParked() {
  for (auto it = running_.begin(); it != running_.end();) {
    if (it->second.parked) Hold(it->second.calls);
    it = it->second.parked ? running_.erase(it) : std::next(it);
  }
}

void Engine::Impl::EndParked(const Status& why) {
  for (auto it = running_.begin(); it != running_.end();) {
    if (it->second.parked) AddResults(it->second.calls, why);
    it = it->second.parked ? running_.erase(it) : std::next(it);
  }
}

void Engine::Impl::WantShutdown(const std::string& error) {
  DrainNegotiator();
  if (negotiator_ == nullptr || !negotiator_->locked() || leaving_) return OnShutdown(error);
  // Others have entered batches that wait for this rank, and the sequencer with it.
  negotiator_->StopLock({UnlockCause::kShutdown, ""}, now_);
  shutdown_wanted_ = error;
  shutdown_deadline_ = now_ + kDrainLimit;
}

void Engine::Impl::ShutDownUnlessLocked() {
  if (!shutdown_wanted_) return;
  const bool locked = negotiator_ != nullptr && negotiator_->locked();
  if (locked && now_ < shutdown_deadline_) return;
  OnShutdown(*std::exchange(shutdown_wanted_, std::nullopt));
  if (locked) EndGeneration(LeftStatus(rank_, ""), rank_);
}

}  // namespace tfring
