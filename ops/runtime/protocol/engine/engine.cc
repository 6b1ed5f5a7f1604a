#include "ops/runtime/protocol/engine/engine.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/protocol/engine/engine_impl.h"
#include "ops/runtime/protocol/message/nonce.h"
#include "ops/runtime/protocol/message/text.h"

namespace tfring {

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Engine::~Engine() = default;

EngineEffects Engine::Step(TimePoint now, EngineEvents events) {
  return impl_->Step(now, std::move(events));
}

TimePoint Engine::next_deadline() const { return impl_->next_deadline(); }

size_t Engine::in_flight() const { return impl_->in_flight(); }

uint64_t Engine::lock() const {
  return impl_->negotiator_ == nullptr ? 0 : impl_->negotiator_->own_lock();
}

uint64_t Engine::lock_rounds() const {
  return impl_->negotiator_ == nullptr ? 0 : impl_->negotiator_->lock_rounds();
}

const ProcessSets& Engine::process_sets() const { return impl_->sets_; }

int64_t Engine::cache_hits() const {
  return impl_->negotiator_ == nullptr ? 0 : impl_->negotiator_->cache_hits();
}

Engine::Impl::Impl(EngineOptions options)
    : rank_(options.rank),
      size_(options.size),
      config_(options.config),
      hosts_(std::move(options.hosts)),
      nonce_(options.nonce),
      sets_(options.size, options.last_process_set),
      peers_(options.rank, options.size, options.config, options.start_timeout) {
  for (auto& [id, ranks] : options.process_sets) {
    const Status added = sets_.Add(id, std::move(ranks));
    TFRING_CHECK(added.ok()) << added.message();
  }
  negotiator_ = std::make_unique<Negotiator>(rank_, size_, config_, &sets_);
}

EngineEffects Engine::Impl::Step(TimePoint now, EngineEvents events) {
  now_ = now;
  progress_ = events.progress;
  if (!started_) {
    started_ = true;
    peers_.StartHeartbeats(now);
  } else if (now - due_ > kHeldUp) {
    PutOff(now - due_);
  }
  for (const Completion& completion : events.completions) OnCompletion(completion);
  for (const ControlEvent& event : events.control) OnControl(event);
  DrainNegotiator();
  for (const Withdrawal& withdrawal : events.withdrawals) OnWithdrawal(withdrawal);
  if (events.unlock && negotiator_ != nullptr) {
    negotiator_->StopLock({UnlockCause::kRequested, ""}, now_);
  }
  if (events.shutdown) WantShutdown(events.error);
  for (Submission& submission : events.submissions) OnSubmission(std::move(submission));
  OnTime();
  ShutDownUnlessLocked();
  DrainNegotiator();
  UpdateHealth();
  effects_.stays = Stays();
  effects_.awaits_end = negotiator_ != nullptr && negotiator_->holds_back();
  effects_.finished =
      leaving_ && !closed_.ok() && !effects_.stays && running_.empty() && held_.empty();
  due_ = std::max(now, next_deadline());
  return std::exchange(effects_, {});
}

// This process did not run, because it was stopped (Ctrl-Z, a debugger, a frozen group of
// processes) or the machine had no time for it. The others cannot be blamed for that time: what
// they sent meanwhile came with this Step, and if they were stopped as well, they need time to go
// on.
void Engine::Impl::PutOff(Duration pause) {
  peers_.PutOff(pause);
  if (drain_deadline_ != kNever) drain_deadline_ += pause;
  if (leave_deadline_ != kNever) leave_deadline_ += pause;
  if (negotiator_ != nullptr) negotiator_->PutOff(pause);
}

TimePoint Engine::Impl::next_deadline() const {
  if (!started_) return 0;
  if (!ended_.ok()) return kNever;
  TimePoint deadline = peers_.suspicion_deadline();
  if (!goodbyes_.empty()) deadline = std::min(deadline, pass_on_at_);
  if (shutdown_wanted_) deadline = std::min(deadline, shutdown_deadline_);
  if (!running_.empty()) deadline = std::min(deadline, drain_deadline_);
  if (negotiator_ != nullptr) {
    deadline = std::min({deadline, negotiator_->next_deadline(), peers_.heartbeat_deadline()});
    if (closed_.ok() || Stays()) deadline = std::min(deadline, leave_deadline_);
  }
  return deadline;
}

size_t Engine::Impl::in_flight() const {
  size_t count =
      held_.size() + delayed_.size() + (negotiator_ == nullptr ? 0 : negotiator_->waiting());
  for (const auto& item : running_) count += item.second.calls.size();
  return count;
}

void Engine::Impl::OnCompletion(const Completion& completion) {
  if (completion.stage == CompletionStage::kLaunched) return OnLaunched(completion.sequence);
  const auto it = running_.find(completion.sequence);
  TFRING_CHECK(it != running_.end()) << "plan " << completion.sequence << " ended without running";
  if (completion.recalled || it->second.is_void) return OnRecalled(completion);
  const Running plan = std::move(it->second);
  running_.erase(it);
  // A backend says Unimplemented where no member can run the plan. All of them find that out by
  // themselves before they move data, so the connections are intact.
  const bool in_lock = negotiator_ != nullptr && negotiator_->HasEntered(completion.sequence);
  const bool impossible =
      completion.status.code() == StatusCode::kUnimplemented && !plan.launched && !in_lock;
  if (completion.status.ok() || impossible) {
    AddResults(plan.calls, impossible ? Unimplemented("cannot run " + plan.what + ": " +
                                                      completion.status.message())
                                      : OkStatus());
    if (negotiator_ != nullptr && !plan.launched) {
      negotiator_->OnPlanDone(completion.sequence, now_, impossible);
    }
    return;
  }
  if (in_lock) {
    Park(completion.sequence, plan);
  } else {
    Hold(plan.calls);
  }
  if (aborted_) return;  // this failure follows from an earlier one
  if (peers_.InRange(completion.suspect)) return OnBrokenConnection(completion, plan.what);
  if (completion.suspects_unknown_peer) return OnBrokenGroup(completion.status, plan.what);
  // The failure is this rank's own, but the others wait for data that will not come.
  EndOnError(Status(completion.status.code(), Name(rank_) + " could not run " + plan.what + ": " +
                                                  completion.status.message()));
}

// The plan still runs, and may still fail, but other plans may follow it.
void Engine::Impl::OnLaunched(uint64_t sequence) {
  const auto it = running_.find(sequence);
  TFRING_CHECK(it != running_.end() && !std::exchange(it->second.launched, true))
      << "plan " << sequence << " was launched without running, or twice";
  if (negotiator_ != nullptr) negotiator_->OnPlanDone(sequence, now_);
}

void Engine::Impl::OnSubmission(Submission call) {
  if (!closed_.ok()) return AddResults({call.id}, closed_);
  if (leaving_ || shutdown_wanted_) return AddResults({call.id}, LeftStatus(rank_, ""));
  negotiator_->Submit(call.id, std::move(call.request), now_, call.attempt);
}

void Engine::Impl::OnWithdrawal(const Withdrawal& withdrawal) {
  if (negotiator_ == nullptr) return;  // every call has ended
  negotiator_->Withdraw(
      withdrawal.process_set, withdrawal.attempt,
      "the step of " + Name(rank_) + " failed: " + Shortened(withdrawal.cause.ToString()), now_);
  DrainNegotiator();  // the others get the cause also if this rank shuts down now
}

void Engine::Impl::OnTime() {
  while (auto expired = peers_.TakeExpired(now_)) OnSuspicion(expired->first, expired->second);
  if (!running_.empty() && now_ >= drain_deadline_ && ended_.ok()) OnDrainLimit();
  if (leaving_ && closed_.ok() && now_ >= leave_deadline_) Close(LeftStatus(rank_, ""));
  if (peers_.all_departed()) goodbyes_.clear();
  if (!goodbyes_.empty() && now_ >= pass_on_at_) PassGoodbyesOn();
  if (negotiator_ == nullptr) return;
  if (Rank silent = peers_.Silent(now_); silent != kNoRank) {
    EndOnPeerLoss(silent,
                  "no heartbeat for " + std::to_string(config_.heartbeat_timeout / kSecond) + " s");
    return;
  }
  if (now_ >= negotiator_->next_deadline()) negotiator_->OnTime(now_, progress_);
  OnHeartbeats();
}

bool Engine::Impl::Stays() const {
  if (rank_ != 0 || !leaving_ || negotiator_ == nullptr || now_ >= leave_deadline_) return false;
  for (const auto& [id, ranks] : sets_.all()) {
    const bool without_us = ranks.front() != rank_;
    const auto gone = [this](Rank rank) { return peers_.departed(rank) || peers_.gone(rank); };
    if (without_us && std::none_of(ranks.begin(), ranks.end(), gone)) return true;
  }
  return false;
}

void Engine::Impl::OnDrainLimit() {
  if (progress_ != drain_progress_) {  // data flows: the plan ends by itself
    drain_progress_ = progress_;
    drain_deadline_ = now_ + kDrainLimit;
    return;
  }
  const Rank left = leaving_ ? rank_ : 0;
  const Status why = LeftStatus(left, running_.begin()->second.what);
  if (leaving_) ReportFault(rank_, why);
  EndGeneration(why, left);
}

void Engine::Impl::OnHeartbeats() {
  DrainNegotiator();  // a peer that gets another frame now needs no heartbeat
  if (negotiator_ == nullptr) return;
  Frame heartbeat;
  heartbeat.type = FrameType::kHeartbeat;
  for (Rank peer : peers_.HeartbeatsDue(now_)) SendFrame(peer, heartbeat);
}

void Engine::Impl::PassGoodbyesOn() {
  Frame frame;
  frame.type = FrameType::kGoodbye;
  frame.departures = std::exchange(goodbyes_, {});
  for (size_t i = kErrorsPassedOn; i < frame.departures.size(); ++i) {
    frame.departures[i].error.clear();
  }
  pass_on_at_ = now_ + kGoodbyePause;
  const std::string bytes = EncodeFrame(frame);
  for (Rank peer : peers_.control_peers()) {
    if (!peers_.departed(peer)) Send(peer, bytes);
  }
}

void Engine::Impl::DrainNegotiator() {
  if (negotiator_ == nullptr) return;
  Negotiator::Output output = negotiator_->Drain();
  // Who gets such an error learns first which ranks have left.
  if (output.cancels && !goodbyes_.empty()) PassGoodbyesOn();
  for (auto& [to, frame] : output.frames) Send(to, std::move(frame));
  for (std::string& warning : output.warnings) effects_.warnings.push_back(std::move(warning));
  for (LockNews& news : output.locks) effects_.locks.push_back(std::move(news));
  for (AttemptEnd& end : output.left) effects_.left.push_back(std::move(end));
  for (auto& [id, error] : output.refused) AddResults({id}, error);
  TakeRecalled();
  for (PlanRun& run : output.runs) Run(std::move(run));
  if (!output.fatal.ok()) EndOnError(output.fatal);
}

void Engine::Impl::Run(PlanRun run) {
  // An error ends its calls at once, also before plans with lower numbers that still run: it uses
  // no connection, and no rank waits for another in it.
  if (!run.plan.error.ok()) return AddResults(run.calls, run.plan.error);
  if (ChangesProcessSets(run.plan.kind)) {
    effects_.process_sets = std::make_shared<const ProcessSets>(sets_);
  }
  // An aborted backend may have stopped in the middle of a transfer: nothing can follow on its
  // connections.
  const bool in_lock = negotiator_ != nullptr && negotiator_->HasEntered(run.plan.sequence);
  if (aborted_ && !in_lock) return Hold(run.calls);
  Running running;
  running.calls = run.calls;
  running.what = FirstAndMore(run.plan.items.front().name, run.plan.items.size());
  running.is_void = run.entry == PlanEntry::kVoid;
  if (aborted_) return Park(run.plan.sequence, std::move(running));
  running_[run.plan.sequence] = std::move(running);
  effects_.runs.push_back(std::move(run));
}

void Engine::Impl::AddResults(const std::vector<CallId>& calls, const Status& status) {
  for (CallId id : calls) {
    auto& results = busy_.count(id) > 0 ? delayed_ : effects_.results;
    results.emplace_back(id, status);
  }
}

// The calls end when it is known why the generation ends.
void Engine::Impl::Hold(const std::vector<CallId>& calls) {
  if (!ended_.ok()) return AddResults(calls, ended_);
  held_.insert(held_.end(), calls.begin(), calls.end());
}

void Engine::Impl::Send(Rank to, std::string frame) {
  if (to == rank_ || peers_.gone(to)) return;
  peers_.Sent(to, now_);
  AddNonce(nonce_, &frame);
  effects_.frames.emplace_back(to, std::move(frame));
}

void Engine::Impl::Broadcast(const Frame& frame) {
  const std::string bytes = EncodeFrame(frame);
  for (Rank peer : peers_.control_peers()) Send(peer, bytes);
}

}  // namespace tfring
