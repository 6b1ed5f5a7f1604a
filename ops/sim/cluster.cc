#include "ops/sim/cluster.h"

#include <algorithm>
#include <utility>

namespace tfring::sim {

namespace {

constexpr Duration kMicrosecond = 1000;
// Survivors have to know about a death by then, although a big process is torn down slowly.
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
      checker_(std::max(options.ranks, 1), options.check_order),
      network_(std::max(options.ranks, 1), &clock_, random_.Fork(),
               [this](Rank to, ControlEvent event) {
                 nodes_[to].pending.control.push_back(std::move(event));
                 PlanStep(to);
               }),
      data_plane_(std::max(options.ranks, 1), &clock_, random_.Fork(),
                  [this](Rank rank, Completion completion) {
                    nodes_[rank].pending.completions.push_back(std::move(completion));
                    PlanStep(rank);
                  }) {
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
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    options.hosts.push_back("h" + std::to_string(rank));
  }
  nodes_.resize(static_cast<size_t>(options_.ranks));
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    options.rank = rank;
    nodes_[rank].engine = std::make_unique<Engine>(options);
    clock_.After(random_.Below(1000 * kMicrosecond), [this, rank] { StartPhase(rank); });
    PlanStep(rank);
  }
}

void Cluster::PlanFault() {
  victim_ = static_cast<Rank>(random_.Below(options_.ranks));
  Allowed allowed;
  if (options_.fault == Fault::kGoodbye) {
    allowed.departed = victim_;
    allowed.cascade = GivesUp();
  } else {
    allowed.lost = victim_;
    allowed.silent = options_.fault == Fault::kHang;
  }
  checker_.SetAllowed(allowed);
  // Half the deaths happen in the middle of a step, when some frames are out and others are not.
  if (options_.fault == Fault::kDeath && random_.Percent(50)) {
    strike_step_ = random_.Below(60);
  } else {
    clock_.At(random_.Below(60 * kMillisecond), [this] { Strike(); });
  }
}

void Cluster::Strike() {
  Node& node = nodes_[victim_];
  if (!node.alive || node.closed || node.leaving) return;
  struck_ = true;
  struck_at_ = clock_.Now();
  if (options_.fault == Fault::kGoodbye) return Leave(victim_);
  node.alive = false;
  if (options_.fault == Fault::kHang) {
    data_plane_.Freeze(victim_);
  } else {
    // The sockets of a big process close long after its last instruction.
    const Duration teardown = random_.Percent(50) ? 0 : random_.Below(250 * kMillisecond);
    network_.CloseAll(victim_, teardown);
    data_plane_.CloseAll(victim_, teardown);
  }
  LeaveIfAllDone();
}

SimReport Cluster::Run() {
  while (checker_.failures().empty() && !Ended()) {
    if (!clock_.RunOne() || clock_.Now() > kHorizon) {
      checker_.Fail("deadlock: nothing goes on any more after " +
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
  // A request and a plan for each call at most, a few frames besides, and everybody's goodbye.
  const int64_t limit = static_cast<int64_t>(4 * workload_.largest_phase + 16) + options_.ranks;
  if (network_.max_in_flight() > limit) {
    checker_.Fail("too many frames under way: " + std::to_string(network_.max_in_flight()));
  }
  SimReport report;
  report.failures = checker_.failures();
  report.plans = checker_.plans();
  report.results = checker_.results();
  report.events = clock_.events_run();
  report.max_frames = network_.max_in_flight();
  report.faulted = struck_;
  report.sabotaged = sabotaged_;
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
                  std::to_string(data_plane_.queued(rank)) + " plans with the backend" +
                  (node.leaving ? ", is leaving"
                   : node.done  ? ", has done its work"
                                : ""));
  }
}

bool Cluster::Ended() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return !node.alive || node.closed; });
}

void Cluster::PlanStep(Rank rank) {
  Node& node = nodes_[rank];
  if (node.step_planned || !node.alive || node.closed) return;
  node.step_planned = true;
  // Now and then the thread is not scheduled for a while, and many events come at once.
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
  EngineEffects effects = node.engine->Step(clock_.Now(), std::move(events));
  if (rank == victim_ && node.steps == strike_step_ && !node.leaving) {
    effects.frames.resize(
        static_cast<size_t>(random_.Below(static_cast<int64_t>(effects.frames.size()) + 1)));
    for (auto& [to, frame] : effects.frames) network_.Send(rank, to, std::move(frame));
    return Strike();
  }
  ++node.steps;
  Apply(rank, std::move(effects));
}

void Cluster::Apply(Rank rank, EngineEffects effects) {
  Node& node = nodes_[rank];
  for (auto& [to, frame] : effects.frames) {
    if (options_.sabotage == Sabotage::kLoseFrame && !sabotaged_ && random_.Percent(20)) {
      sabotaged_ = true;
      network_.LoseNextFrame();
    }
    network_.Send(rank, to, std::move(frame));
  }
  for (PlanRun& run : effects.runs) RunPlan(rank, std::move(run));
  if (effects.abort) data_plane_.Abort(rank, *effects.abort);
  for (const auto& [id, status] : effects.results) PassResult(rank, id, status);
  CheckNode(rank);
  if (effects.finished) {
    node.closed = true;
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
  if (node.engine->in_flight() + node.pending.submissions.size() != checker_.open(rank)) {
    checker_.Fail(who + "the engine counts " + std::to_string(node.engine->in_flight()) +
                  " calls in flight, not " + std::to_string(checker_.open(rank)));
  }
  if (node.engine->next_deadline() <= clock_.Now()) {
    checker_.Fail(who + "the deadline is not after the step");
  }
  const size_t limit = static_cast<size_t>(workload_.config.max_plans_in_flight);
  if (rank == 0 && data_plane_.queued(0) > limit) {
    checker_.Fail(who + std::to_string(data_plane_.queued(0)) + " plans in flight");
  }
}

void Cluster::RunPlan(Rank rank, PlanRun run) {
  const bool target = !sabotaged_ && rank == options_.ranks - 1;
  if (nodes_[rank].broken) {
    checker_.Fail("rank " + std::to_string(rank) + " runs a plan on broken streams");
  }
  if (target && options_.sabotage == Sabotage::kAlterPlan) {
    sabotaged_ = true;
    run.plan.postscale += 1;
  }
  if (!target || options_.sabotage != Sabotage::kSwapPlans) return HandOver(rank, run);
  if (kept_back_.empty()) {
    kept_back_.push_back(std::move(run));
    // An eager user waits for this plan before there is another one to swap it with.
    clock_.After(10 * kMillisecond, [this, rank] { ReleaseKeptBack(rank); });
    return;
  }
  sabotaged_ = true;
  HandOver(rank, run);
  ReleaseKeptBack(rank);
}

void Cluster::ReleaseKeptBack(Rank rank) {
  for (const PlanRun& run : std::exchange(kept_back_, {})) HandOver(rank, run);
}

void Cluster::HandOver(Rank rank, const PlanRun& run) {
  checker_.OnRun(rank, run);
  if (!run.moves_data()) {
    nodes_[rank].pending.completions.push_back({run.plan.sequence, OkStatus(), kNoRank});
    return PlanStep(rank);
  }
  data_plane_.Submit(rank, run, 2048 * static_cast<int64_t>(run.calls.size()));
}

void Cluster::PassResult(Rank rank, CallId id, const Status& status) {
  if (!sabotaged_ && options_.sabotage == Sabotage::kDropResult && random_.Percent(20)) {
    sabotaged_ = true;
    return;
  }
  if (!sabotaged_ && options_.sabotage == Sabotage::kRepeatResult) {
    sabotaged_ = true;
    checker_.OnResult(rank, id, status);
  }
  checker_.OnResult(rank, id, status);
  if (options_.fault == Fault::kDeath && !status.ok() && clock_.Now() > struck_at_ + kDeathLimit) {
    checker_.Fail("rank " + std::to_string(rank) + " learns too late of the death");
  }
  if (options_.fault == Fault::kGoodbye) {
    if (!GivesUp()) {
      CheckBystander(rank, id, status);
    } else if (status.code() == StatusCode::kCancelled) {
      Leave(rank);
    }
  }
  OnCallEnded(rank);
}

// Unless a plan broke in the middle, calls that do not need the rank that left go on.
void Cluster::CheckBystander(Rank rank, CallId id, const Status& status) {
  if (status.code() != StatusCode::kCancelled || nodes_[rank].leaving || victim_ == 0) return;
  const ProcessSetId set = checker_.request(rank, id).process_set;
  const bool needed =
      set == kGlobalProcessSet ||
      std::any_of(workload_.sets.begin(), workload_.sets.end(), [&](const auto& item) {
        return item.first == set &&
               std::binary_search(item.second.begin(), item.second.end(), victim_);
      });
  if (needed || data_plane_.broken() > 0) return;
  checker_.Fail("rank " + std::to_string(rank) + ", call " + std::to_string(id) +
                " was cancelled, but does not need rank " + std::to_string(victim_));
}

}  // namespace tfring::sim
