#include "ops/sim/membership/job.h"

#include <algorithm>
#include <utility>

namespace tfring::sim {

using membership::Command;
using membership::CommandKind;
using membership::CoordinatorEffects;
using membership::CoordinatorEvents;
using membership::Generation;
using membership::Record;
using membership::WorkerId;
using membership::WorkerState;

namespace {

// The time after the last fault until cool-downs, leases and starts have ended.
constexpr Duration kSettled = 60 * kSecond;
// The longest time without a commit: of a settled job, and of one whose hosts may never come.
constexpr Duration kIdleLimit = 45 * kSecond;
constexpr Duration kWaitLimit = 120 * kSecond;
constexpr Duration kExitLimit = 40 * kSecond;
constexpr Duration kSendAgain = 200 * kMillisecond;
// The effects of a fault may show this long after it.
constexpr Duration kAftermath = 15 * kSecond;

std::string SecondsOf(TimePoint when) {
  const std::string millis = std::to_string(when / kMillisecond % 1000);
  return std::to_string(when / kSecond) + "." + std::string(3 - millis.size(), '0') + millis;
}

}  // namespace

Job::Job(const JobOptions& options)
    : options_(options),
      scenario_(MakeScenario(options)),
      random_(options.seed * 7919 + 13),
      checker_(&scenario_),
      coordinator_(std::in_place, scenario_.coordinator),
      hosts_(scenario_.hosts) {}

JobReport Job::Run() {
  CoordinatorEvents first;
  first.hosts = hosts_;
  StepCoordinator(std::move(first));
  for (const PlannedFault& fault : scenario_.faults) {
    clock_.At(fault.when, [this, fault] { Inject(fault); });
  }
  After(kSecond, [this] { Watch(); });
  while (!Ended() && checker_.failures().empty() && clock_.RunOne()) {
  }
  if (checker_.failures().empty()) checker_.Finish(was_lossy_);
  JobReport report;
  report.failures = checker_.failures();
  report.trace = std::move(trace_);
  report.generations = checker_.generations();
  report.joins = checker_.joins();
  report.commits = checker_.commits();
  report.fallbacks = checker_.fallbacks();
  report.publications = checker_.publications();
  report.faults = faults_;
  report.kills = kills_;
  report.events = clock_.events_run();
  report.finished = over_ && exit_code_ == 0;
  report.end = clock_.Now();
  return report;
}

void Job::Trace(const std::string& text) {
  if (options_.trace) trace_.push_back(SecondsOf(now()) + " " + text);
}

bool Job::Ended() const {
  if (!over_) return false;
  return std::none_of(processes_.begin(), processes_.end(),
                      [](const auto& entry) { return entry.second->alive(); });
}

void Job::Watch() {
  if (checker_.commits() != last_commits_) {
    last_commits_ = checker_.commits();
    progress_at_ = now();
  }
  const TimePoint settled = scenario_.last_fault_end + kSettled;
  const membership::CoordinatorOptions& options = scenario_.coordinator;
  const Duration limit =
      options.hosts.first_failure_bars || options.min_np > 1 ? kWaitLimit : kIdleLimit;
  if (!over_ && now() - std::max(progress_at_, settled) > limit) {
    checker_.Fail("no commit of all members since " + SecondsOf(progress_at_) +
                  ", although the last fault ended at " + SecondsOf(scenario_.last_fault_end));
  }
  if (over_ && now() - std::max(over_at_, scenario_.last_fault_end) > kExitLimit) {
    for (const auto& [id, process] : processes_) {
      if (process->alive()) checker_.Fail("worker " + std::to_string(id) + " is left over");
    }
  }
  After(kSecond, [this] { Watch(); });
}

void Job::StepCoordinator(CoordinatorEvents events) {
  if (!coordinator_) return;
  // The hosts themselves register with a restarted coordinator.
  if (life_ > 0 && stores_away_ > 0) events.hosts.reset();
  if (coordinator_stopped_) {
    held_events_.push_back(std::move(events));
    return;
  }
  for (const membership::ProcessEnd& end : events.ends) {
    const bool news = ended_.insert(end.worker).second;
    const auto known = known_.find(end.worker);
    const bool counts = news && known != known_.end() && dismissed_.count(end.worker) == 0;
    if (counts && end.exit_code != 0) checker_.OnFailureOf(now(), known->second);
  }
  events.random = random_.Next();
  Act(coordinator_->Step(now(), std::move(events)));
  PlanTick();
}

void Job::PlanTick() {
  const TimePoint when = coordinator_->next_deadline();
  if (when == kNever) return;
  const uint64_t tick = ++tick_;
  clock_.At(when, [this, tick] {
    if (tick == tick_ && !coordinator_stopped_) StepCoordinator({});
  });
}

void Job::Act(CoordinatorEffects effects) {
  for (const std::string& note : effects.notes) Trace("coordinator: " + note);
  bool noted = false;
  for (auto& [to, command] : effects.commands) {
    if (command.kind == CommandKind::kPropose && !noted &&
        records_.count(command.record.generation) == 0) {
      noted = true;
      NoteProposal(command.record);
    }
    if (command.kind == CommandKind::kExit && !over_ && !effects.end) NoteDismissal(to);
    SendCommand(to, command);
  }
  for (const CoordinatorEffects::Start& start : effects.starts) {
    checker_.OnStart(now(), start.place.first);
    known_[start.worker] = start.place.first;
    Trace("worker " + std::to_string(start.worker) + " is started on " + start.place.first + ":" +
          std::to_string(start.place.second));
    After(kAgentLease, [this, start] {
      if (Find(start.worker) == nullptr && !AgentAnswers(start.place.first)) {
        SayEnd(start.worker, 255, "");
      }
    });
    WithAgent(start.place.first, [this, start, life = life_] {
      // The orders of a coordinator end with it.
      if (ended_.count(start.worker) != 0 || life != life_) return;
      auto& process = processes_[start.worker];
      process = std::make_unique<Process>(this, start.worker, start.place, random_.Fork());
      process->Start();
    });
  }
  for (WorkerId worker : effects.kills) {
    NoteKill(worker);
    Disturb();
    if (Process* process = Find(worker)) {
      WithAgent(process->place().first, [this, process, life = life_] {
        if (life == life_) KillProcess(process, 137, "");
      });
    } else {
      SayEnd(worker, 137, "");
    }
  }
  if (effects.end) {
    Trace("the job ends with " + std::to_string(effects.end->code) + ": " + effects.end->reason);
    over_ = true;
    over_at_ = now();
    exit_code_ = effects.end->code;
    checker_.OnJobEnd(now(), effects.end->code, effects.end->reason);
  }
}

bool Job::FindsHost(const std::string& host) const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const membership::HostSlots& found) { return found.host == host; });
}

void Job::NoteProposal(const Record& record) {
  records_[record.generation] = record;
  JobChecker::Standings standings;
  for (const auto& [id, process] : processes_) {
    JobChecker::Standing standing;
    standing.alive = process->alive() && ended_.count(id) == 0;
    standing.stopped = !process->trains();
    standing.boundary = process->at_boundary();
    const std::string& host = process->place().first;
    standing.leaving =
        asked_to_leave_.count(id) != 0 || !FindsHost(host) || checker_.IsBarred(host);
    standing.position = process->training().committed().position;
    // Skip dismissed workers, and workers that the coordinator does not know.
    if (dismissed_.count(id) == 0 && known_.count(id) != 0) standings[id] = standing;
  }
  checker_.OnProposed(now(), record, standings);
  if (active_faults_ > 0 || now() - disturbed_ < kAftermath) checker_.OnFault(record.generation);
}

// The job continues without this worker.
void Job::NoteDismissal(WorkerId worker) {
  const Process* leaver = Find(worker);
  if (leaver == nullptr || !leaver->alive() || asked_to_leave_.count(worker) != 0) return;
  membership::Position left;  // the best position of the others that the coordinator can know
  for (const auto& [id, process] : processes_) {
    if (id == worker || dismissed_.count(id) != 0 || ended_.count(id) != 0) continue;
    left = std::max(left, process->training().committed().position);
  }
  checker_.OnDismissed(worker, leaver->training().committed().position, left);
}

// Nobody waits for a worker that holds Python's lock, unless something else has failed.
void Job::NoteEviction(WorkerId worker, const std::string& reason) {
  const auto says = [&](const char* text) { return reason.find(text) != std::string::npos; };
  const Process* process = Find(worker);
  const bool unreachable = says("could not reach each other");
  const bool cut_off = says("has lost its connections");
  if (process != nullptr &&
      (unreachable || cut_off || says("was silent") || says("was not ready"))) {
    // This step chose the workers that it starts before the eviction.
    After(0, [this, host = process->place().first, when = now(), unreachable] {
      checker_.OnFailureOf(when, host, unreachable);
    });
  }
  if (!cut_off && !says("was silent")) return;
  const Generation generation = coordinator_->record().generation;
  const bool trains = process != nullptr && process->alive() &&
                      process->worker().Runs(generation) && broken_.count(generation) == 0;
  if (cut_off) {
    const bool told = cut_off_.count(worker) != 0;
    checker_.OnCutOff(worker, trains || !told);
    return;
  }
  const bool lived =
      trains && process->holds() && active_faults_ == holds_ && FindsHost(process->place().first);
  checker_.OnEvicted(now(), worker, heard_[worker].when, lived);
}

// A restarted coordinator continues with the generation that trains.
void Job::NoteKill(WorkerId worker) {
  const Process* process = Find(worker);
  const bool member = process != nullptr && process->alive() && !records_.empty() &&
                      process->worker().Runs(records_.rbegin()->first);
  if (life_ > 0 && member && active_faults_ == 0 && disturbed_ <= begun_ &&
      asked_to_leave_.count(worker) == 0 && FindsHost(process->place().first)) {
    checker_.Fail("worker " + std::to_string(worker) +
                  ", which trains, is ended by a coordinator that was started again");
  }
}

void Job::SendCommand(WorkerId to, const Command& command) {
  checker_.OnCommand(command.kind);
  if (command.kind == CommandKind::kAnswer) checker_.OnAllowed(command.generation);
  if (command.kind == CommandKind::kExcluded || command.kind == CommandKind::kExit) {
    if (dismissed_.insert(to).second) NoteEviction(to, command.reason);
  }
  Transmit(to, false, [this, to, bytes = EncodeCommand(command)] {
    Process* process = Find(to);
    if (process != nullptr) process->Deliver([process, bytes] { process->OnCommand(bytes); });
  });
}

void Job::SendReport(WorkerId from, const membership::Report& report) {
  Transmit(from, true, [this, from, bytes = EncodeReport(report)] {
    auto decoded = membership::DecodeReport(bytes);
    if (!decoded.ok()) {
      checker_.Fail(decoded.status().message());
      return;
    }
    Heard& heard = heard_[from];
    if (decoded->sequence > heard.sequence) {
      heard = {decoded->sequence, now()};
      if (!coordinator_stopped_) cut_off_.erase(from);
    }
    CoordinatorEvents events;
    events.reports.push_back(std::move(*decoded));
    StepCoordinator(std::move(events));
  });
}

// Between a worker and the coordinator: in order and once, unless messages are being lost.
void Job::Transmit(WorkerId worker, bool up, std::function<void()> deliver) {
  const auto attempt = [this, worker, deliver = std::move(deliver)] {
    if (StoreReaches(worker)) deliver();
  };
  if (!StoreReaches(worker)) return;
  if (lossy_ > 0) {
    if (random_.Percent(20)) return;
    After(random_.Between(1, random_.Percent(80) ? 5 : 1500) * kMillisecond, attempt);
    if (random_.Percent(10)) After(random_.Between(1, 1500) * kMillisecond, attempt);
    return;
  }
  TimePoint& last = last_arrivals_[{worker, up}];
  last = std::max(last, now() + random_.Between(200, 3000) * kMicrosecond);
  clock_.At(last, attempt);
}

void Job::SendToPeer(WorkerId from, WorkerId to, std::function<void(Process*)> action) {
  // Some frames come late, when their generation may be over.
  const Duration delay = random_.Percent(90) ? random_.Between(100, 3000) * kMicrosecond
                                             : random_.Between(1, 500) * kMillisecond;
  After(delay, [this, from, to, action = std::move(action)] {
    Process* process = Find(to);
    if (process == nullptr || !process->alive()) return;
    if (PeersReach(from, to)) {
      process->Deliver([process, action] { action(process); });
    } else {  // a stream resends until it gets through, or its ends have given up
      After(kSendAgain, [this, from, to, action] { SendToPeer(from, to, action); });
    }
  });
}

bool Job::IsGone(WorkerId worker) {
  Process* process = Find(worker);
  return process == nullptr || (!process->alive() && down_.count(process->place().first) == 0 &&
                                isolated_.count(process->place().first) == 0);
}

Process* Job::Find(WorkerId worker) {
  const auto found = processes_.find(worker);
  return found == processes_.end() ? nullptr : found->second.get();
}

bool Job::StoreReaches(const std::string& host) const {
  return stores_away_ == 0 && isolated_.count(host) == 0 && down_.count(host) == 0;
}

bool Job::StoreReaches(WorkerId worker) {
  Process* process = Find(worker);
  return process != nullptr && StoreReaches(process->place().first) &&
         cut_from_store_.count(worker) == 0;
}

bool Job::PeersReach(WorkerId a, WorkerId b) {
  const Process* first = Find(a);
  const Process* second = Find(b);
  if (first == nullptr || second == nullptr) return false;
  const std::string& one = first->place().first;
  const std::string& other = second->place().first;
  if (one != other && (isolated_.count(one) != 0 || isolated_.count(other) != 0)) return false;
  return cut_pairs_.count(std::minmax(a, b)) == 0;
}

bool Job::AgentAnswers(const std::string& host) const {
  return isolated_.count(host) + down_.count(host) + paused_.count(host) == 0;
}

void Job::WithAgent(const std::string& host, std::function<void()> action) {
  After(random_.Between(1, 20) * kMillisecond, [this, host, action = std::move(action)] {
    if (stores_away_ == 0 && AgentAnswers(host)) {
      action();
    } else {
      for_agents_.emplace_back(host, action);
    }
  });
}

// Runs after a fault of the network has ended.
void Job::FlushAgents() {
  auto waiting = std::move(for_agents_);
  for_agents_.clear();
  for (auto& [host, action] : waiting) WithAgent(host, std::move(action));
}

void Job::SayEnd(WorkerId worker, int code, const std::string& cause) {
  CoordinatorEvents events;
  events.ends.push_back({worker, code, cause});
  StepCoordinator(std::move(events));
}

}  // namespace tfring::sim
