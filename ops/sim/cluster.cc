#include "ops/sim/cluster.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"

namespace tfring::sim {

namespace {

// A call that a death ends must end within this time, although a large process ends slowly.
constexpr Duration kDeathLimit = kSecond;
// No run takes longer than a heartbeat timeout and some seconds.
constexpr TimePoint kHorizon = 300 * kSecond;

Workload CheckedWorkload(const SimOptions& options, Random random, Checker* checker) {
  Result<Workload> workload = MakeWorkload(options.workload, options.ranks, random);
  if (workload.ok()) return std::move(*workload);
  checker->Fail(workload.status().message());
  return Workload();
}

}  // namespace

Cluster::Cluster(const SimOptions& options)
    : options_(options),
      random_(options.seed),
      checker_(std::max(options.ranks, 1)),
      network_(std::max(options.ranks, 1), &clock_, random_.Fork(),
               [this](Rank to, ControlEvent event) {
                 nodes_[to].pending.control.push_back(std::move(event));
                 PlanStep(to);
               }),
      data_plane_(
          std::max(options.ranks, 1), &clock_, random_.Fork(),
          [this](Rank rank, Completion completion) { OnCompletion(rank, std::move(completion)); }) {
  workload_ = CheckedWorkload(options_, random_.Fork(), &checker_);
  if (!checker_.failures().empty()) return;
  if (options_.fault == Fault::kHang) workload_.config.heartbeat_interval = 5 * kSecond;
  BuildNodes();
  if (options_.fault != Fault::kNone) PlanFault();
}

void Cluster::BuildNodes() {
  EngineOptions options;
  options.size = options_.ranks;
  options.config = workload_.config;
  options.process_sets = workload_.sets;
  options.nonce = options_.seed | 1;  // frames carry a nonce, as in a job
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    options.hosts.push_back("h" + std::to_string(rank));
  }
  nodes_.resize(static_cast<size_t>(options_.ranks));
  running_ = nodes_.size();
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    options.rank = rank;
    nodes_[rank].engine = std::make_unique<Engine>(options);
    nodes_[rank].users.resize(workload_.users[rank].size());
    for (size_t user = 0; user < nodes_[rank].users.size(); ++user) {
      clock_.After(random_.Below(1000 * kMicrosecond), [=] { StartAttempt(rank, user); });
    }
    PlanStep(rank);
  }
}

void Cluster::PlanFault() {
  faulty_rank_ = static_cast<Rank>(random_.Below(options_.ranks));
  AllowedErrors allowed;
  if (options_.fault == Fault::kGoodbye || options_.fault == Fault::kResize) {
    allowed.departed = faulty_rank_;
    allowed.cascade = UsersLeaveOnCancel();
  } else {
    allowed.lost = faulty_rank_;
    allowed.silent = options_.fault == Fault::kHang;
  }
  checker_.Allow(allowed);
  // In other workloads locks are short, and a random moment seldom meets one.
  if (options_.workload == "locked" && random_.Percent(75)) {
    fault_in_lock_ = random_.Below(random_.Pick<int64_t>({4, 30}));
    return;
  }
  // Half the deaths happen in the middle of a step, when some of its frames have been sent.
  if (options_.fault == Fault::kDeath && random_.Percent(50)) {
    fault_step_ = random_.Below(workload_.fault_within_steps);
  } else {
    clock_.At(random_.Below(workload_.fault_within), [this] { InjectFault(); });
  }
}

void Cluster::InjectFault() {
  Node& node = nodes_[faulty_rank_];
  if (!node.alive || node.closed || node.leaving) return;
  faulted_ = true;
  faulted_at_ = clock_.Now();
  report_.in_lock = node.engine->lock() != 0;
  if (options_.fault == Fault::kGoodbye) return Leave(faulty_rank_);
  if (options_.fault == Fault::kResize) {
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      clock_.After(random_.Below(5 * kMillisecond), [this, rank] { Leave(rank); });
    }
    return;
  }
  node.alive = false;
  --running_;
  if (options_.fault == Fault::kHang) {
    data_plane_.Freeze(faulty_rank_);
  } else {
    // The sockets of a large process close long after its last instruction.
    const Duration teardown = random_.Percent(50) ? 0 : random_.Below(250 * kMillisecond);
    network_.CloseAll(faulty_rank_, teardown);
    data_plane_.CloseAll(faulty_rank_, teardown);
  }
  LeaveIfAllDone();
}

SimReport Cluster::Run() {
  while (checker_.failures().empty() && running_ > 0) {
    if (!clock_.RunOne() || clock_.Now() > kHorizon) {
      checker_.Fail("deadlock: nothing happens any more after " +
                    std::to_string(clock_.Now() / kMicrosecond) + " us");
      DescribeDeadlock();
      break;
    }
  }
  std::vector<Rank> survivors;
  for (Rank rank = 0; rank < static_cast<Rank>(nodes_.size()); ++rank) {
    if (nodes_[rank].alive) survivors.push_back(rank);
  }
  checker_.Finish(survivors);
  // At most a request and a plan per call, and a few other frames.
  const int64_t limit = static_cast<int64_t>(4 * workload_.largest_phase + 16);
  if (network_.max_in_flight() > limit) {
    checker_.Fail("too many frames under way: " + std::to_string(network_.max_in_flight()));
  }
  SimReport report = report_;
  report.failures = checker_.failures();
  report.plans = checker_.plans();
  report.results = checker_.results();
  report.aborted = checker_.aborted();
  report.locked = checker_.locked();
  report.recalled = checker_.recalled();
  report.events = clock_.events_run();
  report.max_frames = network_.max_in_flight();
  report.faulted = faulted_;
  report.end = clock_.Now();
  return report;
}

void Cluster::DescribeDeadlock() {
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    const Node& node = nodes_[rank];
    if (!node.alive) checker_.Fail("rank " + std::to_string(rank) + " is dead");
    if (!node.alive || node.closed) continue;
    checker_.Fail("rank " + std::to_string(rank) + " waits for " +
                  std::to_string(checker_.open(rank)) + " calls, " +
                  std::to_string(node.plans.size()) + " plans with the backend" +
                  (node.leaving ? ", is leaving"
                   : node.done  ? ", has done its work"
                                : ""));
  }
}

void Cluster::PlanStep(Rank rank) {
  Node& node = nodes_[rank];
  if (node.step_planned || !node.alive || node.closed) return;
  node.step_planned = true;
  // Sometimes the thread does not run for a while, and many events come at once.
  const Duration delay = random_.Below((random_.Percent(5) ? 2000 : 20) * kMicrosecond);
  clock_.After(delay, [this, rank] { Step(rank); });
}

void Cluster::Wake(Rank rank, TimePoint planned) {
  Node& node = nodes_[rank];
  if (!node.alive || node.closed) return;
  if (node.wake_at == planned) node.wake_at = kNever;
  if (node.engine->next_deadline() <= clock_.Now()) {
    PlanStep(rank);
  } else {
    SetAlarm(rank);
  }
}

void Cluster::SetAlarm(Rank rank) {
  Node& node = nodes_[rank];
  const TimePoint deadline = node.engine->next_deadline();
  if (deadline == kNever || deadline >= node.wake_at) return;
  node.wake_at = deadline;
  clock_.At(deadline, [this, rank, deadline] { Wake(rank, deadline); });
}

void Cluster::Step(Rank rank) {
  Node& node = nodes_[rank];
  node.step_planned = false;
  if (!node.alive || node.closed) return;
  EngineEvents events = std::exchange(node.pending, {});
  for (const Completion& completion : events.completions) {
    node.broken = node.broken || !completion.status.ok();
  }
  const bool nothing_follows = NothingFollows(rank, events);
  const uint64_t lock = node.engine->lock();
  EngineEffects effects = node.engine->Step(clock_.Now(), std::move(events));
  if (nothing_follows && !(effects.frames.empty() && effects.runs.empty())) {
    checker_.Fail("rank " + std::to_string(rank) + " did not wait for a plan to end, but goes on");
  }
  node.awaits_end = effects.awaits_end;
  CheckFrames(rank, lock != 0 && lock == node.engine->lock(), effects);
  if (rank == faulty_rank_ && node.steps == fault_step_ && !node.leaving) {
    effects.frames.resize(
        static_cast<size_t>(random_.Below(static_cast<int64_t>(effects.frames.size()) + 1)));
    for (auto& [to, frame] : effects.frames) network_.Send(rank, to, std::move(frame));
    return InjectFault();
  }
  if (rank == faulty_rank_ && node.engine->lock() != 0 && fault_in_lock_-- == 0) {
    clock_.After(random_.Below(50 * kMicrosecond), [this] { InjectFault(); });
  }
  ++node.steps;
  Apply(rank, std::move(effects));
}

void Cluster::Apply(Rank rank, EngineEffects effects) {
  Node& node = nodes_[rank];
  for (auto& [to, frame] : effects.frames) network_.Send(rank, to, std::move(frame));
  for (const LockNews& news : effects.locks) {
    checker_.OnLockNews(rank, news);
    if (rank == 0 && news.over) ++report_.unlocks[static_cast<size_t>(news.reason.cause)];
  }
  for (const PlanRun& run : effects.runs) StartPlan(rank, run);
  if (effects.abort) data_plane_.Abort(rank, *effects.abort);
  for (const AttemptEnd& end : effects.left) {
    uint64_t& attempt = nodes_[rank].attempts[end.process_set];
    if (attempt == end.attempt) ++attempt;
  }
  for (const auto& [id, status] : effects.results) ReleaseCall(rank, id, status);
  CheckNode(rank);
  if (effects.finished) {
    if (!node.plans.empty() || !node.done_early.empty()) {
      checker_.Fail("rank " + std::to_string(rank) + " leaves while its memory is used");
    }
    node.closed = true;
    --running_;
    network_.CloseAll(rank, 0);
    data_plane_.CloseAll(rank, 0);
    LeaveIfAllDone();
  } else {
    SetAlarm(rank);
  }
}

void Cluster::CheckNode(Rank rank) {
  const Node& node = nodes_[rank];
  const std::string who = "rank " + std::to_string(rank) + ": ";
  const size_t expected = checker_.open(rank) + node.done_early.size();
  if (node.engine->in_flight() + node.pending.submissions.size() != expected) {
    checker_.Fail(who + "the engine counts " + std::to_string(node.engine->in_flight()) +
                  " calls in flight, not " + std::to_string(expected));
  }
  if (node.engine->next_deadline() <= clock_.Now()) {
    checker_.Fail(who + "the deadline is not after the step");
  }
  const auto limit = static_cast<size_t>(workload_.config.max_plans_in_flight);
  if (rank == 0 && node.unlaunched.size() > limit) {
    checker_.Fail(who + std::to_string(node.unlaunched.size()) + " plans in flight");
  }
}

void Cluster::StartPlan(Rank rank, const PlanRun& run) {
  if (nodes_[rank].broken) {
    checker_.Fail("rank " + std::to_string(rank) + " runs a plan on broken streams");
  }
  checker_.OnRun(rank, run);
  if (!run.uses_backend()) {
    nodes_[rank].pending.completions.push_back({run.plan.sequence, OkStatus(), kNoRank});
    return PlanStep(rank);
  }
  nodes_[rank].plans[run.plan.sequence] = run.calls;
  if (run.entry == PlanEntry::kPlanned) nodes_[rank].unlaunched.insert(run.plan.sequence);
  data_plane_.Submit(rank, run, 2048 * static_cast<int64_t>(run.calls.size()));
}

void Cluster::OnCompletion(Rank rank, Completion completion) {
  Node& node = nodes_[rank];
  const uint64_t sequence = completion.sequence;
  const std::string who =
      "rank " + std::to_string(rank) + ", plan " + std::to_string(sequence) + ": ";
  const bool launched = completion.stage == CompletionStage::kLaunched;
  if (launched && node.unlaunched.count(sequence) == 0) checker_.Fail(who + "is launched twice");
  if (!completion.status.ok() && options_.fault == Fault::kNone) {
    checker_.Fail(who + "a deadlock, or it failed for no reason: " + completion.status.ToString());
  }
  checker_.OnPlanEnd(rank, completion);
  report_.launched += launched;
  report_.broken_groups += completion.suspects_unknown_peer;
  node.unlaunched.erase(sequence);
  if (!launched) node.plans.erase(sequence);
  node.pending.completions.push_back(std::move(completion));
  PlanStep(rank);
  if (launched && node.alive && !node.closed) OnLaunched(rank, sequence);
}

// As the process does; the engine takes no part in it.
void Cluster::OnLaunched(Rank rank, uint64_t sequence) {
  for (CallId id : std::vector<CallId>(nodes_[rank].plans.at(sequence))) {
    if (!checker_.call(rank, id).early) continue;
    nodes_[rank].done_early.insert(id);
    ++report_.early;
    DeliverResult(rank, id, OkStatus());
  }
}

// The engine has ended the call, so the user may reuse its memory.
void Cluster::ReleaseCall(Rank rank, CallId id, const Status& status) {
  Node& node = nodes_[rank];
  for (const auto& [sequence, calls] : node.plans) {
    if (std::count(calls.begin(), calls.end(), id) == 0) continue;
    checker_.Fail("rank " + std::to_string(rank) + ", plan " + std::to_string(sequence) +
                  ": call " + std::to_string(id) + " ended while its memory is used");
  }
  if (node.done_early.erase(id) == 0) DeliverResult(rank, id, status);
}

void Cluster::DeliverResult(Rank rank, CallId id, const Status& status) {
  checker_.OnResult(rank, id, status);
  const TimePoint made_at = nodes_[rank].made_at[id];
  nodes_[rank].made_at.erase(id);
  if (options_.fault == Fault::kDeath && !status.ok() &&
      clock_.Now() > std::max(faulted_at_, made_at) + kDeathLimit) {
    checker_.Fail("rank " + std::to_string(rank) + " learns too late of the death");
  }
  if (options_.fault == Fault::kGoodbye || options_.fault == Fault::kResize) {
    if (!UsersLeaveOnCancel()) {
      CheckCancelIsNeeded(rank, id, status);
    } else if (status.code() == StatusCode::kCancelled) {
      Leave(rank);
    }
  }
  const auto caller = nodes_[rank].callers.find(id);
  if (caller == nodes_[rank].callers.end()) return;  // the checker has found this error
  const size_t user = caller->second;
  nodes_[rank].callers.erase(caller);
  if (!status.ok()) OnError(rank, user, checker_.call(rank, id), status);
  OnCallEnded(rank, user);
}

// As EngineEffects::awaits_end promises.
bool Cluster::NothingFollows(Rank rank, const EngineEvents& events) const {
  const Node& node = nodes_[rank];
  if (node.awaits_end || node.leaving || clock_.Now() >= node.engine->next_deadline()) return false;
  return std::all_of(events.completions.begin(), events.completions.end(), Succeeded) &&
         events.control.empty() && events.withdrawals.empty() && events.submissions.empty() &&
         !events.shutdown;
}

// Ranks that run a locked schedule exchange only heartbeats and faults.
void Cluster::CheckFrames(Rank rank, bool locked, const EngineEffects& effects) {
  for (const auto& [to, frame] : effects.frames) {
    const auto type = static_cast<FrameType>(frame[0]);
    if (type == FrameType::kLock && to == 1) ++report_.locks;
    if (locked && type != FrameType::kHeartbeat && type != FrameType::kFault) {
      checker_.Fail("rank " + std::to_string(rank) + " sends a frame of type " +
                    std::to_string(frame[0]) + " in a locked schedule");
    }
  }
}

// A call may be cancelled because of the rank that left only if it needs that rank, or if a plan
// broke in the middle.
void Cluster::CheckCancelIsNeeded(Rank rank, CallId id, const Status& status) {
  if (status.code() != StatusCode::kCancelled || nodes_[rank].leaving || faulty_rank_ == 0) return;
  const ProcessSetId set = checker_.call(rank, id).request.process_set;
  const bool needed =
      set == kGlobalProcessSet ||
      std::any_of(workload_.sets.begin(), workload_.sets.end(), [&](const auto& item) {
        return item.first == set &&
               std::binary_search(item.second.begin(), item.second.end(), faulty_rank_);
      });
  if (needed || data_plane_.broken() > 0) return;
  checker_.Fail("rank " + std::to_string(rank) + ", call " + std::to_string(id) +
                " was cancelled, but does not need rank " + std::to_string(faulty_rank_));
}

}  // namespace tfring::sim
