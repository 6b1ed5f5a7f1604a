#include "ops/runtime/protocol/engine/engine.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/protocol/engine/limits.h"
#include "ops/runtime/protocol/message/text.h"

namespace tfring {

Engine::Engine(EngineOptions options)
    : rank_(options.rank),
      sets_(options.size, options.last_process_set),
      peers_(options.rank, options.size, options.config, options.start_timeout),
      texts_(options.rank, std::move(options.hosts), peers_),
      frames_(options.rank, options.nonce, &peers_) {
  for (auto& [id, ranks] : options.process_sets) {
    const Status added = sets_.Add(id, std::move(ranks));
    TFRING_CHECK(added.ok()) << added.message();
  }
  negotiator_ = std::make_unique<Negotiator>(rank_, options.size, options.config, &sets_);
}

EngineEffects Engine::Step(TimePoint now, EngineEvents events) {
  BeginStep(now, events.progress);
  for (const Completion& completion : events.completions) OnCompletion(completion);
  for (const ControlEvent& event : events.control) OnControl(event);
  DrainNegotiator();
  for (const Withdrawal& withdrawal : events.withdrawals) OnWithdrawal(withdrawal);
  if (events.shutdown) WantShutdown(events.error);
  for (Submission& submission : events.submissions) OnSubmission(std::move(submission));
  OnTime();
  ShutDownUnlessLocked();
  DrainNegotiator();
  effects_.frames = frames_.Take();
  effects_.health = ending_.TakeHealth(texts_, peers_.first_departed());
  effects_.results = plans_.TakeResults();
  effects_.stays = Stays();
  effects_.awaits_end = negotiator_ != nullptr && negotiator_->holds_back();
  effects_.finished = ending_.leaving() && !ending_.closed().ok() && !effects_.stays &&
                      plans_.empty() && !plans_.holds_calls();
  time_.due = std::max(now, next_deadline());
  return std::exchange(effects_, {});
}

void Engine::BeginStep(TimePoint now, int64_t progress) {
  time_.now = now;
  time_.progress = progress;
  frames_.SetTime(now);
  if (!std::exchange(time_.started, true)) {
    peers_.StartHeartbeats(now);
  } else if (now - time_.due > kHeldUp) {
    PutOff(now - time_.due);
  }
}

// This process did not run, because it was stopped (Ctrl-Z, a debugger, a frozen group of
// processes) or the machine had no time for it. The others cannot be blamed for that time: what
// they sent meanwhile came with this Step, and if they were stopped as well, they need time to go
// on.
void Engine::PutOff(Duration pause) {
  peers_.PutOff(pause);
  ending_.PutOff(pause);
  if (negotiator_ != nullptr) negotiator_->PutOff(pause);
}

TimePoint Engine::next_deadline() const {
  if (!time_.started) return 0;
  if (!ending_.ended().ok()) return kNever;
  TimePoint deadline =
      std::min({peers_.suspicion_deadline(), goodbyes_.deadline(), ending_.wanted_deadline()});
  if (!plans_.empty()) deadline = std::min(deadline, ending_.drain_deadline());
  if (negotiator_ != nullptr) {
    deadline = std::min({deadline, negotiator_->next_deadline(), peers_.heartbeat_deadline()});
    if (ending_.closed().ok() || Stays()) deadline = std::min(deadline, ending_.leave_deadline());
  }
  return deadline;
}

size_t Engine::in_flight() const {
  return plans_.in_flight() + (negotiator_ == nullptr ? 0 : negotiator_->participant().waiting());
}

uint64_t Engine::lock() const {
  return negotiator_ == nullptr ? 0 : negotiator_->participant().locked().entering();
}

uint64_t Engine::lock_rounds() const {
  return negotiator_ == nullptr ? 0 : negotiator_->participant().locked().rounds();
}

int64_t Engine::cache_hits() const {
  return negotiator_ == nullptr ? 0 : negotiator_->participant().cache_hits();
}

bool Engine::InLockedSchedule(uint64_t sequence) const {
  return negotiator_ != nullptr && negotiator_->participant().locked().HasEntered(sequence);
}

void Engine::OnCompletion(const Completion& completion) {
  const uint64_t sequence = completion.sequence;
  if (completion.stage == CompletionStage::kLaunched) return OnLaunched(sequence);
  if (completion.recalled || plans_.At(sequence).state == PlanState::kVoid) {
    return OnRecalled(completion);
  }
  const RunningPlans::Plan plan = plans_.Take(sequence);
  const bool launched = plan.state == PlanState::kLaunched;
  // A backend says Unimplemented where no member can run the plan. All of them find that out by
  // themselves before they move data, so the connections are intact.
  const bool in_lock = InLockedSchedule(sequence);
  const bool impossible =
      completion.status.code() == StatusCode::kUnimplemented && !launched && !in_lock;
  if (completion.status.ok() || impossible) {
    plans_.EndCalls(plan.calls, impossible ? Unimplemented("cannot run " + plan.what + ": " +
                                                           completion.status.message())
                                           : OkStatus());
    if (negotiator_ != nullptr && !launched) {
      negotiator_->OnPlanDone(sequence, time_.now, impossible);
    }
    return;
  }
  if (in_lock) {
    plans_.Park(sequence, plan);
  } else {
    plans_.Hold(plan.calls);
  }
  if (ending_.aborted()) return;  // this failure follows from an earlier one
  if (peers_.InRange(completion.suspect)) return OnBrokenConnection(completion, plan.what);
  if (completion.suspects_unknown_peer) return OnBrokenGroup(completion.status, plan.what);
  // The failure is this rank's own, but the others wait for data that will not come.
  EndOnError(Status(completion.status.code(), texts_.Name(rank_) + " could not run " + plan.what +
                                                  ": " + completion.status.message()));
}

// The plan still runs, and may still fail, but other plans may follow it.
void Engine::OnLaunched(uint64_t sequence) {
  PlanState& state = plans_.At(sequence).state;
  TFRING_CHECK(state == PlanState::kRunning) << "plan " << sequence << " cannot be launched now";
  state = PlanState::kLaunched;
  if (negotiator_ != nullptr) negotiator_->OnPlanDone(sequence, time_.now);
}

void Engine::OnSubmission(Submission call) {
  if (!ending_.closed().ok()) return plans_.EndCalls({call.id}, ending_.closed());
  if (ending_.leaving() || ending_.wants_to_leave()) {
    return plans_.EndCalls({call.id}, texts_.Left(rank_));
  }
  negotiator_->Submit(call.id, std::move(call.request), time_.now, call.attempt);
}

void Engine::OnWithdrawal(const Withdrawal& withdrawal) {
  if (negotiator_ == nullptr) return;  // every call has ended
  negotiator_->Withdraw(
      withdrawal.process_set, withdrawal.attempt,
      "the step of " + texts_.Name(rank_) + " failed: " + Shortened(withdrawal.cause.ToString()),
      time_.now);
  DrainNegotiator();  // the others get the cause also if this rank shuts down now
}

void Engine::OnTime() {
  const TimePoint now = time_.now;
  while (auto expired = peers_.TakeExpired(now)) OnSuspicion(expired->first, expired->second);
  if (!plans_.empty() && now >= ending_.drain_deadline() && ending_.ended().ok()) OnDrainLimit();
  if (ending_.leaving() && ending_.closed().ok() && now >= ending_.leave_deadline()) {
    Close(texts_.Left(rank_));
  }
  if (peers_.all_departed()) goodbyes_.Clear();
  if (!goodbyes_.empty() && now >= goodbyes_.deadline()) PassGoodbyesOn();
  if (negotiator_ == nullptr) return;
  if (Rank silent = peers_.Silent(now); silent != kNoRank) {
    return EndOnPeerLoss(silent,
                         "no heartbeat for " + std::to_string(peers_.timeout() / kSecond) + " s");
  }
  if (now >= negotiator_->next_deadline()) negotiator_->OnTime(now, time_.progress);
  OnHeartbeats();
}

void Engine::OnHeartbeats() {
  DrainNegotiator();  // a peer that gets another frame now needs no heartbeat
  if (negotiator_ == nullptr) return;
  Frame heartbeat;
  heartbeat.type = FrameType::kHeartbeat;
  for (Rank peer : peers_.HeartbeatsDue(time_.now)) frames_.Send(peer, heartbeat);
}

bool Engine::Stays() const {
  if (rank_ != 0 || !ending_.leaving() || negotiator_ == nullptr) return false;
  if (time_.now >= ending_.leave_deadline()) return false;
  for (const auto& [id, ranks] : sets_.all()) {
    const bool without_us = ranks.front() != rank_;
    const auto gone = [this](Rank rank) { return peers_.departed(rank) || peers_.gone(rank); };
    if (without_us && std::none_of(ranks.begin(), ranks.end(), gone)) return true;
  }
  return false;
}

void Engine::PassGoodbyesOn() {
  Frame frame;
  frame.type = FrameType::kGoodbye;
  frame.departures = goodbyes_.Take(time_.now);
  const std::string bytes = EncodeFrame(frame);
  for (Rank peer : peers_.control_peers()) {
    if (!peers_.departed(peer)) frames_.Send(peer, bytes);
  }
}

// Moves what the negotiator produced into the effects.
void Engine::DrainNegotiator() {
  if (negotiator_ == nullptr) return;
  Negotiator::Output output = negotiator_->Drain();
  // A rank that gets a Cancelled error must know already which ranks have left, so the goodbyes go
  // out first.
  if (output.cancels && !goodbyes_.empty()) PassGoodbyesOn();
  for (auto& [to, frame] : output.frames) frames_.Send(to, std::move(frame));
  for (std::string& warning : output.warnings) effects_.warnings.push_back(std::move(warning));
  for (LockNews& news : output.locks) effects_.locks.push_back(std::move(news));
  for (AttemptEnd& end : output.left) effects_.left.push_back(std::move(end));
  for (auto& [id, error] : output.refused) plans_.EndCalls({id}, error);
  TakeRecalled();
  for (PlanRun& run : output.runs) Run(std::move(run));
  if (!output.fatal.ok()) EndOnError(output.fatal);
}

void Engine::Run(PlanRun run) {
  // An error ends its calls at once, also before plans with lower numbers that still run: it uses
  // no connection, and no rank waits for another in it.
  if (!run.plan.error.ok()) return plans_.EndCalls(run.calls, run.plan.error);
  if (ChangesProcessSets(run.plan.kind)) {
    effects_.process_sets = std::make_shared<const ProcessSets>(sets_);
  }
  // An aborted backend may have stopped in the middle of a transfer: nothing can follow on its
  // connections.
  const uint64_t sequence = run.plan.sequence;
  if (ending_.aborted() && !InLockedSchedule(sequence)) return plans_.Hold(run.calls);
  RunningPlans::Plan plan;
  plan.calls = run.calls;
  plan.what = FirstAndMore(run.plan.items.front().name, run.plan.items.size());
  if (run.entry == PlanEntry::kVoid) plan.state = PlanState::kVoid;
  if (ending_.aborted()) return plans_.Park(sequence, std::move(plan));
  plans_.Add(sequence, std::move(plan));
  effects_.runs.push_back(std::move(run));
}

bool Engine::Keep(const ControlEvent& event, FrameType type) {
  if (negotiator_ == nullptr || rank_ != 0) return false;
  if (type == FrameType::kGoodbye) DrainNegotiator();  // what came before it may make a lock
  if (negotiator_ == nullptr || !negotiator_->locked() || !KeptEvents::Keeps(type)) return false;
  kept_.Add(event, type, !negotiator_->coordinator()->frozen(event.peer));
  return true;
}

// After a frame that may have ended the locked schedule.
void Engine::ReadKept() {
  if (kept_.empty() || (negotiator_ != nullptr && negotiator_->locked())) return;
  const LockCoordinator* ranks = negotiator_ == nullptr ? nullptr : negotiator_->coordinator();
  for (const ControlEvent& event : kept_.Take(ranks)) OnControl(event);
}

// Not all members have entered the plan, so rank 0 says, or has said, that its calls wait again.
void Engine::OnRecalled(const Completion& completion) {
  const uint64_t sequence = completion.sequence;
  RunningPlans::Plan& running = plans_.At(sequence);
  plans_.Release(sequence);
  if (!completion.recalled && completion.status.ok()) {
    plans_.Take(sequence);
    return EndOnError(Internal("plan " + std::to_string(sequence) + " of a lock ended on " +
                               texts_.Name(rank_) + ", although not all ranks have entered it"));
  }
  if (running.state != PlanState::kVoid && negotiator_ != nullptr) {
    running.state = PlanState::kParked;
    return;
  }
  const RunningPlans::Plan plan = plans_.Take(sequence);
  plans_.EndCalls(plan.calls, ending_.ended().ok() ? ending_.closed() : ending_.ended());
  if (completion.status.ok() || ending_.aborted()) return;
  if (peers_.InRange(completion.suspect)) return OnBrokenConnection(completion, plan.what);
  return EndOnError(completion.status);
}

// From here on the calls of plans that were recalled wait, and no longer run.
void Engine::TakeRecalled() {
  if (const auto recalled = negotiator_->TakeRecalled()) plans_.Recall(*recalled);
}

void Engine::WantShutdown(const std::string& exception) {
  DrainNegotiator();
  if (negotiator_ == nullptr || !negotiator_->locked() || ending_.leaving()) {
    return OnShutdown(exception);
  }
  // Others have entered batches that wait for this rank, and the sequencer with it.
  negotiator_->StopLock({UnlockCause::kShutdown, ""}, time_.now);
  ending_.WantToLeave(exception, time_.now + kDrainLimit);
}

void Engine::ShutDownUnlessLocked() {
  if (!ending_.wants_to_leave()) return;
  const bool locked = negotiator_ != nullptr && negotiator_->locked();
  if (locked && time_.now < ending_.wanted_deadline()) return;
  OnShutdown(ending_.TakeWanted());
  if (locked) EndGeneration(texts_.Left(rank_), rank_);
}

}  // namespace tfring
