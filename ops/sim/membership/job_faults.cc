// The faults of a simulated job.

#include <algorithm>
#include <utility>

#include "ops/sim/membership/job.h"

namespace tfring::sim {

using membership::CoordinatorEvents;
using membership::Generation;
using membership::WorkerId;
using membership::WorkerState;

namespace {

// The runtime notices a silent peer after this time.
constexpr Duration kHeartbeatLimit = 10 * kSecond;
// The coordinator learns of a lost connection to the store after this time.
constexpr Duration kCutOff = 200 * kMillisecond;

bool InGeneration(WorkerState state) {
  return state == WorkerState::kJoining || state == WorkerState::kMesh ||
         state == WorkerState::kSync || state == WorkerState::kRunning;
}

}  // namespace

// For a while from now, generations may end with members at different commits.
void Job::Disturb() {
  disturbed_ = now();
  checker_.OnFaultAnywhere();
}

std::vector<Process*> Job::Members() {
  std::vector<Process*> members;
  if (!coordinator_) return members;
  for (const membership::Member& member : coordinator_->record().members) {
    Process* process = Find(member.worker);
    if (process != nullptr && process->alive() && !process->stopped()) members.push_back(process);
  }
  return members;
}

Process* Job::PickMember() {
  const std::vector<Process*> members = Members();
  return members.empty() ? nullptr : random_.Pick(members);
}

void Job::Inject(const PlannedFault& fault) {
  if (over_) return;
  ++faults_;
  Trace(std::string("fault: ") + JobFaultName(fault.kind));
  switch (fault.kind) {
    case JobFault::kKill:
    case JobFault::kKillFirst:
    case JobFault::kKillThree:
    case JobFault::kKillInPhase:
    case JobFault::kKillInStep:
    case JobFault::kException:
    case JobFault::kStop:
    case JobFault::kHold:
    case JobFault::kLeave:
      InjectOnProcess(fault);
      return;
    case JobFault::kCutPair:
    case JobFault::kCutStore:
    case JobFault::kStoreAway:
    case JobFault::kStopStore:
    case JobFault::kKillCoordinator:
    case JobFault::kLossy:
      InjectOnNetwork(fault);
      return;
    case JobFault::kIsolate:
    case JobFault::kPauseHost:
    case JobFault::kHostDown:
    case JobFault::kHostKilled:
    case JobFault::kNewHost:
    case JobFault::kHostGone:
    case JobFault::kAllReplaced:
      InjectOnHost(fault);
      return;
  }
}

// Ends a lasting fault, and delivers the messages that the network held back.
void Job::Undo(const PlannedFault& fault, std::function<void()> undo) {
  Disturb();
  ++active_faults_;
  After(fault.lasts, [this, kind = fault.kind, undo = std::move(undo)] {
    Trace(std::string("end of fault: ") + JobFaultName(kind));
    --active_faults_;
    Disturb();
    undo();
    FlushAgents();
  });
}

void Job::InjectOnProcess(const PlannedFault& fault) {
  if (fault.kind == JobFault::kKillInPhase) {
    kill_in_phase_.push_back(fault.phase);
    return;
  }
  if (fault.kind == JobFault::kKillInStep) {
    ++kills_in_step_;
    return;
  }
  Process* member = PickMember();
  if (fault.kind == JobFault::kKillFirst && !Members().empty()) member = Members().front();
  if (member == nullptr) return;
  switch (fault.kind) {
    case JobFault::kStop:
      StopProcess(member, fault);
      return;
    case JobFault::kHold:
      member->Hold();
      ++holds_;
      Undo(fault, [this, member] {
        --holds_;
        member->Wake();
      });
      return;
    case JobFault::kLeave:
      asked_to_leave_.insert(member->id());
      member->Deliver([member] { member->OnLeave(); });
      return;
    case JobFault::kException:
      KillProcess(member, 1, "ValueError: planned by the seed");
      return;
    case JobFault::kKillThree:
      for (int i = 0; i < 2; ++i) {
        After(random_.Between(0, 50) * kMillisecond, [this] {
          if (Process* other = PickMember()) KillProcess(other, 137, "");
        });
      }
      KillProcess(member, 137, "");
      return;
    default:
      KillProcess(member, 137, "");
  }
}

void Job::KillProcess(Process* process, int code, const std::string& cause) {
  if (!process->alive()) return;
  const WorkerId id = process->id();
  Trace("worker " + std::to_string(id) + " is killed");
  Disturb();
  ++kills_[static_cast<int>(process->worker().state())];
  process->Kill();
  if (InGeneration(process->worker().state())) OnBroken(process->worker().generation(), id, id);
  WithAgent(process->place().first, [this, id, code, cause] { SayEnd(id, code, cause); });
  if (StoreReaches(id)) CutOff(id);
}

// Tells the coordinator that a worker has no connection, unless it has connected again.
void Job::CutOff(WorkerId worker) {
  After(kCutOff, [this, worker, life = life_] {
    const Process* process = Find(worker);
    const bool there = process->alive() && StoreReaches(worker);
    if (there || stores_away_ > 0 || life != life_ || over_) return;
    cut_off_.insert(worker);
    CoordinatorEvents events;
    events.cut_off.push_back(worker);
    StepCoordinator(std::move(events));
  });
}

void Job::CutOffHost(const std::string& host) {
  for (const auto& [id, process] : processes_) {
    if (process->place().first == host) CutOff(id);
  }
}

void Job::OnExit(WorkerId worker, int code) {
  Process* process = Find(worker);
  const WorkerState before = process->worker().state();
  process->Kill();
  // A worker that leaves by itself may still count as a member.
  if (code != 0 && dismissed_.count(worker) == 0) Disturb();
  if (before == WorkerState::kExcluded || before == WorkerState::kExited) {
    OnBroken(process->worker().generation(), worker, membership::kNobody);
  }
  WithAgent(process->place().first, [this, worker, code] { SayEnd(worker, code, ""); });
}

bool Job::OnState(WorkerId worker, WorkerState state) {
  const auto found = std::find(kill_in_phase_.begin(), kill_in_phase_.end(), state);
  if (found == kill_in_phase_.end() || over_) return false;
  kill_in_phase_.erase(found);
  KillProcess(Find(worker), 137, "");
  return true;
}

bool Job::OnHalfOfResults(WorkerId worker) {
  if (kills_in_step_ == 0 || over_) return false;
  --kills_in_step_;
  KillProcess(Find(worker), 137, "");
  return true;
}

void Job::StopProcess(Process* process, const PlannedFault& fault) {
  process->Stop();
  Trace("worker " + std::to_string(process->id()) + " is stopped");
  const Generation generation = process->worker().generation();
  After(kHeartbeatLimit, [this, process, generation] {
    if (process->stopped() && process->alive()) OnBroken(generation, process->id(), process->id());
  });
  Undo(fault, [process] { process->Wake(); });
}

void Job::OnBroken(Generation generation, WorkerId by, WorkerId suspect) {
  if (!broken_.insert(generation).second) return;
  const bool silent = down_.count(Find(by)->place().first) != 0;
  for (const membership::Member& member : records_[generation].members) {
    if (member.worker == by) continue;
    const Duration notice = silent || !PeersReach(by, member.worker)
                                ? random_.Between(1000, 3000) * kMillisecond
                                : random_.Between(1, 50) * kMillisecond;
    After(notice, [this, to = member.worker, generation, suspect] {
      Process* process = Find(to);
      if (process == nullptr) return;
      process->Deliver(
          [process, generation, suspect] { process->OnPeerGone(generation, suspect); });
    });
  }
}

// After `notice` this member sees that it cannot reach the other one, and blames it.
void Job::NoteCut(WorkerId by, WorkerId other, Duration notice) {
  Process* process = Find(by);
  if (process == nullptr || !process->alive()) return;
  const Generation generation = process->worker().generation();
  After(notice, [this, process, generation, by, other] {
    if (!PeersReach(by, other)) {
      process->Deliver([process, generation, other] { process->OnPeerGone(generation, other); });
    }
  });
}

void Job::InjectOnNetwork(const PlannedFault& fault) {
  const std::vector<Process*> members = Members();
  if (fault.kind == JobFault::kStoreAway) {
    ++stores_away_;
    Undo(fault, [this] {
      --stores_away_;
      TellOfHost("");
    });
    return;
  }
  if (fault.kind == JobFault::kStopStore) {
    StopCoordinator(fault);
    return;
  }
  if (fault.kind == JobFault::kKillCoordinator) {
    KillCoordinator(fault);
    return;
  }
  if (fault.kind == JobFault::kLossy) {
    ++lossy_;
    was_lossy_ = true;
    Undo(fault, [this] { --lossy_; });
    return;
  }
  if (members.empty()) return;
  const WorkerId one = random_.Pick(members)->id();
  if (fault.kind == JobFault::kCutStore) {
    cut_from_store_.insert(one);
    CutOff(one);
    Undo(fault, [this, one] { cut_from_store_.erase(one); });
    return;
  }
  const WorkerId other = random_.Pick(members)->id();
  if (one == other) return;
  const auto pair = std::minmax(one, other);
  const std::pair<WorkerId, WorkerId> cut = {pair.first, pair.second};
  cut_pairs_.insert(cut);
  NoteCut(one, other, random_.Between(kSecond, kHeartbeatLimit));
  NoteCut(other, one, random_.Between(kSecond, kHeartbeatLimit));
  Undo(fault, [this, cut] { cut_pairs_.erase(cut); });
}

void Job::InjectOnHost(const PlannedFault& fault) {
  membership::CoordinatorEvents events;
  if (fault.kind == JobFault::kNewHost) {
    hosts_.push_back({"new" + std::to_string(++new_hosts_), 2});
    events.hosts = hosts_;
    StepCoordinator(std::move(events));
    return;
  }
  if (fault.kind == JobFault::kAllReplaced) {
    for (membership::HostSlots& host : hosts_) host.host = "new" + std::to_string(++new_hosts_);
    events.hosts = hosts_;
    StepCoordinator(std::move(events));
    return;
  }
  if (hosts_.size() < 2) return;
  const membership::HostSlots host = random_.Pick(hosts_);
  if (fault.kind == JobFault::kHostGone) {
    hosts_.erase(std::find_if(hosts_.begin(), hosts_.end(),
                              [&](const auto& other) { return other.host == host.host; }));
    events.hosts = hosts_;
    StepCoordinator(std::move(events));
    After(fault.lasts, [this, host] {
      membership::CoordinatorEvents back;
      hosts_.push_back(host);
      back.hosts = hosts_;
      if (!over_) StepCoordinator(std::move(back));
    });
    return;
  }
  if (down_.count(host.host) + isolated_.count(host.host) + paused_.count(host.host) != 0) return;
  if (fault.kind == JobFault::kHostDown) {
    Undo(fault, [this, host] { down_.erase(host.host); });
    HostDown(host.host);
    MissAgent(host.host);
  } else if (fault.kind == JobFault::kHostKilled) {
    paused_.insert(host.host);
    Undo(fault, [this, host] { paused_.erase(host.host); });
    KillAllOf(host.host);
    MissAgent(host.host);
  } else if (fault.kind == JobFault::kPauseHost) {
    PauseHost(host.host, fault);
  } else {
    IsolateHost(host.host, fault);
  }
}

void Job::IsolateHost(const std::string& host, const PlannedFault& fault) {
  isolated_.insert(host);
  if (random_.Percent(50)) CutOffHost(host);  // otherwise the network reports nothing
  const Duration inside_notices = random_.Between(kSecond, kHeartbeatLimit);
  const Duration outside_notices = random_.Between(kSecond, kHeartbeatLimit);
  for (Process* inside : Members()) {
    if (inside->place().first != host) continue;
    for (Process* outside : Members()) {
      if (outside->place().first == host) continue;
      NoteCut(inside->id(), outside->id(), inside_notices);
      NoteCut(outside->id(), inside->id(), outside_notices);
    }
  }
  Undo(fault, [this, host] { isolated_.erase(host); });
  MissAgent(host);
}

// The host's agent stops, too, so it ends no process meanwhile.
void Job::PauseHost(const std::string& host, const PlannedFault& fault) {
  paused_.insert(host);
  Undo(fault, [this, host] { paused_.erase(host); });
  MissAgent(host);
  for (const auto& [id, process] : processes_) {
    const bool inside = process->place().first == host;
    if (inside && process->alive() && !process->stopped()) StopProcess(process.get(), fault);
  }
}

// The launcher takes the processes of a host with a silent agent for ended. The agent ends them,
// too; on a paused host it does so when the host resumes.
void Job::MissAgent(const std::string& host) {
  After(kAgentLease, [this, host] {
    if (over_ || AgentAnswers(host)) return;
    Disturb();
    for (const auto& [id, process] : processes_) {
      if (process->place().first != host || ended_.count(id) != 0) continue;
      SayEnd(id, 255, "");
      process->Deliver([this, it = process.get()] { KillProcess(it, 137, ""); });
    }
  });
}

// Events during the stop wait until after the first look at the time.
void Job::StopCoordinator(const PlannedFault& fault) {
  if (coordinator_stopped_) return;
  coordinator_stopped_ = was_lossy_ = true;  // it repeats its commands to all that wait for it
  Undo(fault, [this] {
    coordinator_stopped_ = false;
    StepCoordinator({});
    auto held = std::move(held_events_);
    held_events_.clear();
    for (auto& events : held) StepCoordinator(std::move(events));
  });
}

// The store ends with the coordinator, and so do orders that nobody has received.
void Job::KillCoordinator(const PlannedFault& fault) {
  if (coordinator_stopped_ || !coordinator_) return;
  ++life_;
  ++tick_;
  ++stores_away_;
  coordinator_.reset();
  was_lossy_ = true;  // many messages are repeated
  Undo(fault, [this] {
    --stores_away_;
    StartCoordinator();
  });
}

void Job::StartCoordinator() {
  membership::CoordinatorOptions options = scenario_.coordinator;
  options.rebuild_wait = options.lease;
  // In a real job a node that loses the coordinator for too long ends its workers. Their ids may be
  // used again if no other node knew them.
  if (!processes_.empty()) options.first_worker = processes_.rbegin()->first + 1;
  coordinator_.emplace(options);
  begun_ = now();
  checker_.OnNewCoordinator();
  known_.clear();
  StepCoordinator({});
  std::set<std::string> hosts;
  for (const auto& [id, process] : processes_) {
    hosts.insert(process->place().first);
    Attach(id);
    if (process->alive()) dismissed_.erase(id);  // no process knows of its dismissal now
  }
  for (const std::string& host : hosts) {
    WithAgent(host, [this, host, life = life_] {
      if (life == life_) TellOfHost(host);
    });
  }
}

// The agent of a host has found the coordinator.
void Job::TellOfHost(const std::string& host) {
  membership::CoordinatorEvents events;
  events.hosts = hosts_;
  if (!records_.empty()) events.last_generation = records_.rbegin()->first;
  for (const auto& [id, process] : processes_) {
    if (process->place().first != host) continue;
    events.last_worker = id;
    if (!process->alive()) continue;
    events.living.push_back({id, process->place()});
    known_[id] = host;
  }
  if (!over_) StepCoordinator(std::move(events));
}

void Job::Attach(WorkerId worker) {
  After(random_.Between(1, 1500) * kMillisecond, [this, worker, life = life_] {
    Process* process = Find(worker);
    if (!process->alive() || life != life_) return;
    if (StoreReaches(worker)) {
      process->Deliver([process] { process->OnAttached(); });
    } else {
      Attach(worker);
    }
  });
}

void Job::HostDown(const std::string& host) {
  down_.insert(host);
  KillAllOf(host);
}

void Job::KillAllOf(const std::string& host) {
  for (const auto& [id, process] : processes_) {
    if (process->place().first == host) KillProcess(process.get(), 137, "");
  }
}

std::string ReplayLine(const JobOptions& options) {
  std::string line = "tfring_membership_sim --seed=" + std::to_string(options.seed) + " --seeds=1";
  if (options.workers > 0) line += " --workers=" + std::to_string(options.workers);
  if (options.faults >= 0) line += " --faults=" + std::to_string(options.faults);
  return line;
}

}  // namespace tfring::sim
