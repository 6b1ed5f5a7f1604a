#include "ops/runtime/protocol/engine/engine.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/engine/engine_state.h"

namespace tfring {

Engine::Engine(EngineOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Engine::~Engine() = default;

EngineEffects Engine::Step(TimePoint now, EngineEvents events) {
  return state_->Step(now, std::move(events));
}

TimePoint Engine::next_deadline() const { return state_->next_deadline(); }

size_t Engine::in_flight() const { return state_->in_flight(); }

int64_t Engine::cache_hits() const { return state_->cache_hits(); }

Engine::State::State(EngineOptions options)
    : rank_(options.rank),
      size_(options.size),
      config_(options.config),
      hosts_(std::move(options.hosts)),
      sets_(options.size),
      peers_(options.rank, options.size, options.config) {
  for (auto& [id, ranks] : options.process_sets) {
    Status status = sets_.Add(id, std::move(ranks));
    if (!status.ok() && closed_.ok()) closed_ = status;
  }
  if (closed_.ok()) negotiator_ = std::make_unique<Negotiator>(rank_, size_, config_, &sets_);
}

EngineEffects Engine::State::Step(TimePoint now, EngineEvents events) {
  now_ = now;
  if (!started_) {
    started_ = true;
    peers_.StartHeartbeats(now);
  }
  for (const Completion& completion : events.completions) OnCompletion(completion);
  for (const ControlEvent& event : events.control) OnControl(event);
  Pump();
  if (events.shutdown) OnShutdown();
  for (auto& [id, request] : events.submissions) OnSubmission(id, std::move(request));
  OnTime();
  Pump();
  effects_.finished = leaving_ && !entries_.any_running() && held_.empty();
  return std::exchange(effects_, {});
}

TimePoint Engine::State::next_deadline() const {
  if (!started_) return 0;
  if (!ended_.ok()) return kNever;
  TimePoint deadline = peers_.suspicion_deadline();
  if (entries_.any_running()) deadline = std::min(deadline, drain_deadline_);
  if (negotiator_ != nullptr) {
    deadline = std::min({deadline, negotiator_->next_deadline(), peers_.heartbeat_deadline()});
  }
  return deadline;
}

void Engine::State::OnCompletion(const Completion& completion) {
  std::string what = entries_.Describe(completion.sequence);
  std::vector<CallId> ids = entries_.TakeRunning(completion.sequence);
  if (completion.status.ok()) {
    for (CallId id : ids) effects_.results.emplace_back(id, OkStatus());
    if (negotiator_ != nullptr) negotiator_->OnPlanDone(completion.sequence, now_);
    return;
  }
  if (completion.status.code() == StatusCode::kUnimplemented) {
    // No member can run it, all know that by themselves, and nothing has moved: it ends alone.
    const Status why = Unimplemented("cannot run " + what + ": " + completion.status.message());
    for (CallId id : ids) effects_.results.emplace_back(id, why);
    if (negotiator_ != nullptr) negotiator_->OnPlanDone(completion.sequence, now_);
    return;
  }
  held_.insert(held_.end(), ids.begin(), ids.end());
  if (!ended_.ok()) {
    CompleteHeld(ended_);
  } else if (aborted_) {
    // The verdict on the first broken stream is under way.
  } else if (peers_.InRange(completion.suspect)) {
    OnBrokenStream(completion, what);
  } else {
    // Nobody else is to blame, but the others wait for data that will not come.
    EndOnError(Status(completion.status.code(),
                      Name(rank_) + " could not run " + what + ": " + completion.status.message()));
  }
}

void Engine::State::OnSubmission(CallId id, Request request) {
  Status status = closed_;
  const std::vector<Rank>* members = sets_.Find(request.process_set);
  const std::string set = "process set " + std::to_string(request.process_set);
  if (!status.ok()) {
    // As it is.
  } else if (members == nullptr) {
    status = InvalidArgument("'" + request.name + "' names " + set + ", which does not exist");
  } else if (sets_.PositionOf(request.process_set, rank_) < 0) {
    status = InvalidArgument("'" + request.name + "' was called on " + Name(rank_) + ", but " +
                             set + " has only the ranks " + RanksString(*members));
  } else {
    status = CheckRouting(request, *members, rank_);
  }
  if (status.ok() && request.refusal.empty()) {
    // The others are to hear of it instead of waiting for this rank.
    const Status valid = CheckRequest(request, *members, rank_);
    if (!valid.ok()) Refuse(valid, &request);
  }
  if (status.ok() && !entries_.Add(id, request)) {
    status = InvalidArgument("'" + request.name + "' is in flight on " + Name(rank_) +
                             " already: wait for that call, or give this one another name");
  }
  if (status.ok()) {
    negotiator_->Submit(std::move(request), now_);
  } else {
    effects_.results.emplace_back(id, std::move(status));
  }
}

void Engine::State::OnShutdown() {
  if (leaving_) return;
  leaving_ = true;
  Frame goodbye;
  goodbye.type = FrameType::kGoodbye;
  goodbye.rank = rank_;
  Broadcast(goodbye, kNoRank);
  Close(LeftStatus(rank_, ""));
}

void Engine::State::OnTime() {
  while (auto expired = peers_.TakeExpired(now_)) {
    auto& [suspect, suspicion] = *expired;
    if (!suspicion.hard) {
      // Nothing of ours is broken: rank 0 decides, who may know more.
      if (closed_.ok()) Report(suspect, Unavailable(suspicion.reason));
    } else if (peers_.departed(0)) {
      EndOnLeave(suspect, "");  // after rank 0's goodbye the others are leaving too
    } else {
      EndOnPeerLoss(suspect, suspicion.reason);
    }
  }
  if (entries_.any_running() && now_ >= drain_deadline_ && ended_.ok()) {
    Rank left = leaving_ ? rank_ : 0;
    Status why = LeftStatus(left, entries_.DescribeOldest());
    if (leaving_) Report(rank_, why);
    EndGeneration(why, left);
  }
  if (negotiator_ == nullptr) return;
  if (Rank silent = peers_.Silent(now_); silent != kNoRank) {
    EndOnPeerLoss(silent,
                  "no heartbeat for " + std::to_string(config_.heartbeat_timeout / kSecond) + " s");
    return;
  }
  if (now_ >= negotiator_->next_deadline()) negotiator_->OnTime(now_);
  Pump();  // what is sent anyway spares the heartbeat
  if (negotiator_ == nullptr) return;
  Frame heartbeat;
  heartbeat.type = FrameType::kHeartbeat;
  for (Rank peer : peers_.HeartbeatsDue(now_)) SendFrame(peer, heartbeat);
}

void Engine::State::Pump() {
  if (negotiator_ == nullptr) return;
  Negotiator::Output output = negotiator_->Drain();
  for (auto& [to, frame] : output.frames) Send(to, std::move(frame));
  for (std::string& warning : output.warnings) effects_.warnings.push_back(std::move(warning));
  for (Plan& plan : output.plans) Run(std::move(plan));
  if (!output.fatal.ok()) EndOnError(output.fatal);
}

void Engine::State::Run(Plan plan) {
  if (!ended_.ok()) return;
  if (!plan.error.ok()) return EndWithError(plan);
  const std::string what = "plan " + std::to_string(plan.sequence);
  if (plan.sequence <= last_sequence_) {
    return EndOnError(
        Internal(Name(rank_) + " got " + what + " after plan " + std::to_string(last_sequence_)));
  }
  last_sequence_ = plan.sequence;
  std::vector<CallId> ids;
  for (const PlanItem& item : plan.items) {
    std::optional<CallId> id = entries_.FindWaiting(plan.process_set, item.name);
    if (!id)
      return EndOnError(Internal(Name(rank_) + " got " + what + " with '" + item.name +
                                 "', which it did not submit"));
    ids.push_back(*id);
  }
  // The streams are in the middle of something: nothing may run on them, the verdict is near.
  if (aborted_) return;
  entries_.HandOver(plan.sequence, ids);
  std::vector<Rank> members = std::move(plan.members);
  effects_.runs.push_back(PlanRun{std::move(plan), std::move(members), std::move(ids)});
}

void Engine::State::EndWithError(const Plan& plan) {
  for (const PlanItem& item : plan.items) {
    // A member that has not submitted the tensor is told too; there is nothing to end.
    std::optional<CallId> id = entries_.FindWaiting(plan.process_set, item.name);
    if (!id) continue;
    entries_.Remove(*id);
    effects_.results.emplace_back(*id, plan.error);
  }
}

void Engine::State::CompleteHeld(const Status& status) {
  for (CallId id : held_) effects_.results.emplace_back(id, status);
  held_.clear();
}

void Engine::State::Send(Rank to, std::string frame) {
  if (to == rank_ || peers_.gone(to)) return;
  peers_.Sent(to, now_);
  effects_.frames.emplace_back(to, std::move(frame));
}

void Engine::State::Broadcast(const Frame& frame, Rank except) {
  std::string bytes = EncodeFrame(frame);
  for (Rank peer : peers_.control_peers()) {
    if (peer != except) Send(peer, bytes);
  }
}

std::string Engine::State::Name(Rank rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (static_cast<size_t>(rank) < hosts_.size()) text += " (host " + hosts_[rank] + ")";
  return text;
}

}  // namespace tfring
