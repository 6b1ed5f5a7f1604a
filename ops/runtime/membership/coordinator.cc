#include "ops/runtime/membership/coordinator.h"

#include <algorithm>

#include "ops/runtime/base/text.h"

namespace tfring::membership {
namespace {

// How often Step compares times with limits, which are seconds.
constexpr Duration kTick = 100 * kMillisecond;
// A command is not repeated before the worker's answer could have come.
constexpr Duration kRepairAfter = 200 * kMillisecond;
// How long the slot of a worker that was told to leave stays in use if its agent says nothing.
constexpr Duration kSlotLimit = 30 * kSecond;

std::string WorkerName(WorkerId worker, const Place& place) {
  return "worker " + std::to_string(worker) + " (host " + place.first + ", slot " +
         std::to_string(place.second) + ")";
}

// A cause without its numbers, which differ between ranks and attempts: "rank 3: at 0x7f3a" and
// "rank 12: at 0x55d0" are the same.
std::string WithoutNumbers(const std::string& cause) {
  std::string text;
  bool in_number = false;
  for (const char c : cause) {
    const bool digit = c >= '0' && c <= '9';
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (digit && !in_number) text += '#';
    in_number = digit || (in_number && letter);
    if (!in_number) text += c;
  }
  return text;
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options), hosts_(options_.hosts), next_worker_(options_.first_worker) {
  if (options_.rebuild_wait > 0) rebuilding_.emplace();
}

CoordinatorEffects Coordinator::Step(TimePoint now, CoordinatorEvents events) {
  now_ = now;
  effects_ = {};
  if (ticks_.first == kNever) {
    ticks_.first = now;
  } else if (now - ticks_.next > kPause) {
    Forgive(now - ticks_.next);
    // Reads first what came meanwhile; not in each Step, in case every Step comes late.
    if (!ticks_.forgave) ticks_.next = After(now, kTick);
    ticks_.forgave = !ticks_.forgave;
  } else {
    ticks_.forgave = false;
  }
  const bool someone = events.hosts || !events.living.empty() || !events.reports.empty();
  if (events.hosts) SetHosts(std::move(*events.hosts));
  next_worker_ = std::max(next_worker_, events.last_worker + 1);
  last_generation_ = std::max(last_generation_, events.last_generation);
  for (const LivingProcess& living : events.living) OnLiving(living);
  for (const ProcessEnd& end : events.ends) OnEnd(end);
  for (Report& report : events.reports) OnReport(std::move(report));
  for (WorkerId worker : events.cut_off) {
    const auto found = processes_.find(worker);
    if (found == processes_.end()) continue;
    found->second.cut_off = true;
    ticks_.next = now;
  }
  if (rebuilding_ && StillRebuilds(someone)) return std::move(effects_);
  if (phase() != Phase::kOver && now >= ticks_.next) {
    ticks_.next = After(now, kTick);
    Expire();
    CheckLimits();
    StartWorkers();
  }
  Advance(events.random);
  return std::move(effects_);
}

// While the coordinator was stopped, it heard nobody and told nobody. So that time counts for no
// limit that it sets to others. It does count where they used it: between two joins, in the window
// of resets, for hosts that cool down and for leases that end.
void Coordinator::Forgive(Duration pause) {
  ticks_.Shift(pause);
  if (rebuilding_) rebuilding_->Shift(pause);
  for (auto& [id, process] : processes_) process.Shift(pause);
  for (auto& [id, ending] : ending_) ending.Shift(pause);
  std::visit([pause](auto& phase) { phase.Shift(pause); }, phase_);
}

void Coordinator::SetHosts(std::vector<HostSlots> hosts) {
  hosts_.Set(std::move(hosts));
  if (rebuilding_) return;  // not all hosts have been named yet
  for (auto& [id, process] : processes_) {
    if (!hosts_.Has(process.place)) process.leaving = true;
  }
}

void Coordinator::OnEnd(const ProcessEnd& end) {
  ending_.erase(end.worker);
  const auto found = processes_.find(end.worker);
  if (found == processes_.end() || phase() == Phase::kOver) {
    over_.insert(end.worker);
    return;
  }
  const Process process = found->second;
  Remove(end.worker);
  ending_.erase(end.worker);  // its slot is free
  const std::string why = WorkerName(end.worker, process.place) + " ended with exit code " +
                          std::to_string(end.exit_code) +
                          (end.cause.empty() ? "" : ": " + end.cause);
  if (end.exit_code > 0) OnHostFailure(process.place.first);
  if (rebuilding_) return;
  if (!CountWithoutInit(end, process)) {
    EndJob(1, why + ", and so did " + std::to_string(ended_without_init_ - 1) +
                  " before it, and none has called init: does the program call it? One that does "
                  "not cannot be run as an elastic job");
    return;
  }
  if (!end.cause.empty() && !CountCause(end, process)) {
    EndJob(1, "the same error came " + std::to_string(repeated_error_.times) + " times at " +
                  PositionText(repeated_error_.at) + ", last: " + why);
    return;
  }
  if (IsMember(end.worker)) StartRound(why, true);
}

// Counts workers that end with code 0 before any worker has registered: new ones would end in the
// same way. Returns false at the limit.
bool Coordinator::CountWithoutInit(const ProcessEnd& end, const Process& process) {
  if (next_arrival_ > 1 || end.exit_code != 0 || process.leaving) return true;
  return ++ended_without_init_ < options_.same_error_limit;
}

// Returns false if this error ends the job, because it came too often at one commit. If several
// members of a generation fail with it, it counts once. It does not count if it keeps a new worker
// from joining a generation that trains: then the host is to blame, not the program.
bool Coordinator::CountCause(const ProcessEnd& end, const Process& process) {
  const bool member = IsMember(end.worker);
  if (!member && phase() == Phase::kRunning) return true;
  // A worker that fails has not reported its last commits, and a new one perhaps none: it has got
  // at least to where its generation began. That is further back if all were lost.
  const Position at = std::max(record_.position, process.last.position);
  std::string cause = WithoutNumbers(end.cause);
  const bool same = cause == repeated_error_.text && !(repeated_error_.at < at);
  if (same && member && repeated_error_.generation == last_generation_) return true;
  repeated_error_.times = same ? repeated_error_.times + 1 : 1;
  repeated_error_.text = std::move(cause);
  if (!same) repeated_error_.at = at;
  if (member) repeated_error_.generation = last_generation_;
  return repeated_error_.times < options_.same_error_limit;
}

void Coordinator::OnReport(Report report) {
  const WorkerId id = report.worker;
  if (const auto* over = std::get_if<Over>(&phase_)) {
    Command exit;
    exit.kind = CommandKind::kExit;
    exit.exit_code = over->code;
    exit.reason = over->reason;
    Tell(id, std::move(exit));
    return;
  }
  auto found = processes_.find(id);
  if (over_.count(id) != 0 || !Adopt(id, report)) {
    if (found != processes_.end()) Remove(id);
    over_.insert(id);
    Tell(id, CommandKind::kExcluded,
         "worker " + std::to_string(id) + " is no part of the job any more: it was taken for dead");
    return;
  }
  if (found == processes_.end()) {
    if ((report.state != WorkerState::kWaiting && !rebuilding_) || report.slot < 0) return;
    next_worker_ = std::max(next_worker_, id + 1);
    found = processes_.emplace(id, Process()).first;
  }
  Process& process = found->second;
  if (report.sequence <= process.last.sequence) return;
  if (report.slot >= 0) process.place = {report.host, report.slot};
  if (!process.registered) process.arrival = next_arrival_++;
  process.registered = true;
  process.cut_off = false;
  process.leaving |= report.leaving;
  process.heard = now_;
  if (rebuilding_) TakeRecord(std::move(report.record));
  report.record = {};
  process.last = std::move(report);
  newest_position_ = std::max(newest_position_, process.last.position);
  Command answer;
  answer.generation =
      phase() == Phase::kRunning && now_ >= old_leases_end_ ? record_.generation : 0;
  answer.sequence = process.last.sequence;
  answer.sent_at = process.last.sent_at;
  effects_.commands.emplace_back(id, std::move(answer));
  if (rebuilding_) return;
  if (IsMember(id)) OnMemberReport(process);
  if (now_ - process.told >= kRepairAfter) Repair(id, &process);
}

void Coordinator::OnMemberReport(const Process& process) {
  const Report& report = process.last;
  if (report.generation != record_.generation) return;
  const bool stopped = report.state == WorkerState::kBroken;
  if (Running* const run = running(); run != nullptr && report.step > run->best_step) {
    run->best_step = report.step;
    run->advanced_at = now_;
    suspects_.Clear();
  }
  const bool at_fault =
      report.state == WorkerState::kStopping || (stopped && !report.boundary && !report.done);
  // While the job waits for workers, reports repeat suspects that were judged already.
  if (at_fault && suspects_judged_in_ != last_generation_) {
    suspects_.Accuse(report.worker, report.suspect);
    const auto suspect = processes_.find(report.suspect);
    if (suspect != processes_.end() && suspect->first != report.worker) {
      suspect->second.lost_in = record_.generation;
    }
  }
  if (at_fault && (gathering() == nullptr || !gathering()->ends_sent)) {
    StartRound("a collective failed on " + WorkerName(report.worker, process.place), true);
  } else if (stopped && report.boundary) {
    StartRound("workers come or go", false);
  }
}

// Repeats the command that this worker would have obeyed if it had not been lost.
void Coordinator::Repair(WorkerId worker, Process* process) {
  const Report& report = process->last;
  const bool stopped =
      report.state == WorkerState::kWaiting || report.state == WorkerState::kBroken;
  const bool active = !stopped && report.state != WorkerState::kStopping;
  Command command;
  command.generation = report.generation;
  if (active && (!IsMember(worker) || report.generation != record_.generation ||
                 (gathering() != nullptr && gathering()->ends_sent))) {
    command.kind = CommandKind::kEnd;
  } else if (stopped && phase() == Phase::kForming && IsMember(worker) &&
             report.generation < record_.generation) {
    command.kind = CommandKind::kPropose;
    command.record = record_;
  } else if (running() != nullptr && report.state == WorkerState::kMesh) {
    command.kind = CommandKind::kGo;
  } else if (running() != nullptr && running()->change_pending && !report.announced &&
             report.state == WorkerState::kRunning && RankOf(record_, worker) == 0) {
    command.kind = CommandKind::kChangePending;
  } else {
    return;
  }
  Tell(worker, std::move(command));
}

// Returns the hosts of members that others have lost and that are silent or disconnected. The
// agents there, which report the ends of processes, may be lost too.
std::set<std::string> Coordinator::LostHosts() const {
  std::set<std::string> hosts;
  for (const auto& [id, process] : processes_) {
    const bool lost = process.lost_in != 0 && process.lost_in == record_.generation;
    if (lost && !IsHeard(process)) hosts.insert(process.place.first);
  }
  return hosts;
}

// A silent member does not end a generation that advances: each step needs all members.
bool Coordinator::IsSilent(WorkerId worker, const Process& process, Duration limit) const {
  TimePoint heard = process.heard;
  if (running() != nullptr && IsMember(worker)) heard = std::max(heard, running()->advanced_at);
  return now_ - heard > limit;
}

void Coordinator::Expire() {
  const std::set<std::string> lost = LostHosts();
  std::vector<std::pair<WorkerId, std::string>> out;
  for (const auto& [id, process] : processes_) {
    const bool lost_host = lost.count(process.place.first) != 0;
    if (process.cut_off && lost_host) {
      out.emplace_back(id, "has lost its connections");
      old_leases_end_ = std::max(old_leases_end_, After(process.heard, options_.lease));
      continue;
    }
    // A worker that lives may be silent for long: it starts, or a call keeps Python's lock.
    const bool vouched_for = process.started && hosts_.Has(process.place) && !lost_host;
    const bool patient = !process.registered || vouched_for;
    if (!IsSilent(id, process, patient ? options_.start_limit : options_.lease)) continue;
    out.emplace_back(id, process.registered
                             ? "was silent for " + SecondsText(now_ - process.heard)
                             : "was not ready within " + SecondsText(options_.start_limit));
  }
  for (const auto& [id, why] : out) {
    const std::string host = processes_.at(id).place.first;
    Evict(id, why);
    OnHostFailure(host);
  }
  for (auto ending = ending_.begin(); ending != ending_.end();) {
    ending = now_ - ending->second.since > kSlotLimit ? ending_.erase(ending) : std::next(ending);
  }
}

void Coordinator::CheckLimits() {
  if (!AnyStays() && hosts_.AllBarred() && !(AllStopped() && AllDone())) {
    EndJob(1,
           "a worker has failed on every host, and each is barred after its first failure: see "
           "above why workers end");
    return;
  }
  if (Gathering* const gather = gathering()) {
    // A member did not come to the commit at which the others stopped.
    if (!gather->ends_sent && now_ - gather->since > options_.stop_limit / 2) SendEnds(gather);
    EvictLate(gather->since, options_.stop_limit, true);
  } else if (const auto* const forming = std::get_if<Forming>(&phase_)) {
    EvictLate(forming->since, options_.connect_limit, false);
  }
}

// Does without the members that have not stopped, or not connected, within `limit`.
void Coordinator::EvictLate(TimePoint since, Duration limit, bool to_stop) {
  if (now_ - since <= limit) return;
  std::vector<WorkerId> out;
  for (WorkerId member : member_ids_) {
    const auto found = processes_.find(member);
    if (found == processes_.end()) continue;
    const Process& process = found->second;
    const bool connected =
        process.last.state == WorkerState::kMesh && process.last.generation == record_.generation;
    // One that has stopped and is silent now cannot be in the next generation either.
    const bool stopped = HasStopped(process) && now_ - process.heard <= limit;
    if (to_stop ? !stopped : !connected) out.push_back(member);
  }
  for (WorkerId member : out) {
    Evict(member, std::string(to_stop ? "did not stop" : "did not connect") + " within " +
                      SecondsText(limit));
  }
}

void Coordinator::OnHostFailure(const std::string& host, bool at_once) {
  if (at_once) {
    hosts_.Cool(now_, host);
  } else {
    hosts_.OnFailure(now_, host);
  }
  const bool empty = options_.hosts.cooling_empties && !hosts_.Usable(now_, host);
  if (!empty && !hosts_.Barred(host)) return;
  for (auto& [id, process] : processes_) {
    if (process.place.first == host) process.leaving = true;
  }
}

void Coordinator::Evict(WorkerId worker, const std::string& why) {
  const std::string text = WorkerName(worker, processes_.at(worker).place) + " " + why;
  Remove(worker);
  Tell(worker, CommandKind::kExcluded, text);
  effects_.kills.push_back(worker);
  effects_.notes.push_back(text + ": the job goes on without it");
  if (IsMember(worker)) StartRound(text, true);
}

void Coordinator::Remove(WorkerId worker) {
  ending_[worker] = {processes_.at(worker).place, now_};
  processes_.erase(worker);
  over_.insert(worker);
  if (worker == handover_.giver) handover_.giver = kNobody;
}

void Coordinator::Tell(WorkerId worker, Command command) {
  const auto found = processes_.find(worker);
  if (found != processes_.end()) found->second.told = now_;
  effects_.commands.emplace_back(worker, std::move(command));
}

void Coordinator::Tell(WorkerId worker, CommandKind kind, std::string reason) {
  Command command;
  command.kind = kind;
  command.generation = record_.generation;
  command.reason = std::move(reason);
  Tell(worker, std::move(command));
}

void Coordinator::EndJob(int code, const std::string& reason) {
  phase_ = Over{code, reason};
  effects_.end = CoordinatorEffects::End{code, reason};
  Command exit;
  exit.kind = CommandKind::kExit;
  exit.exit_code = code;
  exit.reason = reason;
  for (const auto& [id, process] : processes_) effects_.commands.emplace_back(id, exit);
}

}  // namespace tfring::membership
