// How one generation follows another.

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "ops/runtime/base/text.h"
#include "ops/runtime/membership/coordinator.h"
#include "ops/runtime/membership/worker.h"

namespace tfring::membership {
namespace {

// A shortage of workers is logged when it has lasted this long: kStarting while some workers start,
// else kSettled.
constexpr Duration kStarting = 30 * kSecond;
constexpr Duration kSettled = 3 * kSecond;

}  // namespace

void Coordinator::Advance(uint64_t random) {
  if (phase() == Phase::kForming && AllConnected()) {
    phase_ = Running{record_.position.step, now_};
    for (const Member& member : record_.members) Tell(member.worker, CommandKind::kGo);
  }
  if (Running* const run = running()) WatchForChanges(run);
  if (phase() == Phase::kRunning && AllStopped()) StartRound("all members have stopped", false);
  if (phase() == Phase::kGathering && AllStopped()) Close(random);
}

// Ends the present generation. Where nothing failed, members stop by themselves.
void Coordinator::StartRound(const std::string& why, bool failed) {
  if (phase() == Phase::kOver) return;
  if (phase() != Phase::kGathering) {
    phase_ = Gathering{now_};
    if (record_.generation != 0) {
      effects_.notes.push_back("generation " + std::to_string(record_.generation) +
                               " ends: " + why);
    }
  }
  Gathering* const gather = gathering();
  gather->failed = gather->failed || failed;
  if (failed && !gather->ends_sent) SendEnds(gather);
}

void Coordinator::SendEnds(Gathering* gather) {
  gather->ends_sent = true;
  for (WorkerId member : member_ids_) {
    const auto found = processes_.find(member);
    if (found == processes_.end()) continue;
    const Report& last = found->second.last;
    const bool stops = last.state == WorkerState::kBroken || last.state == WorkerState::kStopping;
    if (stops && last.generation == record_.generation) continue;
    Tell(member, CommandKind::kEnd, "a member was lost, or a collective failed");
  }
}

// A worker that still waits has not heard of this generation, so it applies no step of it.
bool Coordinator::HasStopped(const Process& process) {
  const WorkerState state = process.last.state;
  return state == WorkerState::kBroken || state == WorkerState::kWaiting;
}

// The worker can be a member of the next generation, and need not leave. A silent one is not ready:
// the others would wait for it.
bool Coordinator::IsReady(const Process& process) const {
  return process.registered && !process.leaving && HasStopped(process) && IsHeard(process);
}

// Counts the ready workers among the first `most` that need not leave, in the order of their ids.
size_t Coordinator::CountReady(size_t most) const {
  size_t ready = 0;
  for (const auto& [id, process] : processes_) {
    if (process.leaving) continue;
    if (most-- == 0) break;
    ready += IsReady(process) ? 1 : 0;
  }
  return ready;
}

// Whether a process, ready or not, need not leave.
bool Coordinator::AnyStays() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const auto& entry) { return !entry.second.leaving; });
}

bool Coordinator::AllStopped() const {
  return std::all_of(member_ids_.begin(), member_ids_.end(), [&](WorkerId member) {
    const auto found = processes_.find(member);
    if (found == processes_.end()) return true;
    return HasStopped(found->second) && IsHeard(found->second);
  });
}

bool Coordinator::AllConnected() const {
  return std::all_of(member_ids_.begin(), member_ids_.end(), [&](WorkerId member) {
    const auto found = processes_.find(member);
    return found != processes_.end() && found->second.last.state == WorkerState::kMesh &&
           found->second.last.generation == record_.generation;
  });
}

// Whether at least one member lives, and all that live have come to the end of the training.
bool Coordinator::AllDone() const {
  bool any = false;
  for (WorkerId member : member_ids_) {
    const auto found = processes_.find(member);
    if (found == processes_.end()) continue;
    if (!found->second.last.done) return false;
    any = true;
  }
  return any;
}

// Returns the first leaver with the newest state, if no worker that stays has that state and one
// may come to take it; otherwise kNobody. A worker that wants to leave waits only for workers that
// are there already.
WorkerId Coordinator::AheadOfAllThatStay() const {
  const bool any_stays = AnyStays();
  Position best;
  for (const auto& [id, process] : processes_) {
    if (!process.leaving) best = std::max(best, process.last.position);
  }
  WorkerId ahead = kNobody;
  for (const Member& member : record_.members) {
    const auto found = processes_.find(member.worker);
    if (found == processes_.end() || !found->second.leaving) continue;
    const Report& last = found->second.last;
    const bool may_be_taken = any_stays || (!last.leaving && !hosts_.empty());
    if (!may_be_taken || !(best < last.position)) continue;
    best = last.position;
    ahead = member.worker;
  }
  return ahead;
}

// If all workers with the newest state leave, one of them is a member once more and gives its state
// to the others. It need not leave at all if its host may be used again.
void Coordinator::KeepState() {
  const WorkerId before = handover_.giver;
  handover_.giver = AheadOfAllThatStay();
  if (handover_.giver == kNobody) return;
  Process& process = processes_.at(handover_.giver);
  if (!process.last.leaving && hosts_.Has(process.place) &&
      hosts_.Usable(now_, process.place.first)) {
    process.leaving = false;
    handover_.giver = kNobody;
  } else if (handover_.giver != before) {
    effects_.notes.push_back("worker " + std::to_string(handover_.giver) +
                             " leaves when another worker has its state, " +
                             PositionText(process.last.position));
  }
}

// Tells workers that must leave, or want to, to exit, once they have stopped.
void Coordinator::DismissLeavers() {
  std::vector<WorkerId> leavers;
  for (const auto& [id, process] : processes_) {
    const bool stopped = !IsMember(id) || (gathering() != nullptr && id != handover_.giver);
    if (process.leaving && stopped) leavers.push_back(id);
  }
  for (WorkerId leaver : leavers) {
    if (!processes_.at(leaver).registered) effects_.kills.push_back(leaver);
    Remove(leaver);
    Command exit;
    exit.kind = CommandKind::kExit;
    exit.exit_code = kExitTryAgain;
    exit.reason = "it leaves the job, which goes on";
    Tell(leaver, std::move(exit));
  }
}

// All members have stopped: ends the job, proposes the next generation or waits for more workers.
void Coordinator::Close(uint64_t random) {
  if (AllDone()) {
    EndJob(0, "the training is over");
    return;
  }
  // A replacement of all hosts takes two generations, and counts as one change.
  const bool handed_over = handover_.in_record && !gathering()->failed;
  JudgeSuspects();
  KeepState();
  DismissLeavers();
  const bool counts =
      last_generation_ != 0 && !handed_over && (gathering()->failed || options_.count_changes);
  // With a window there may be resets again by the time there are enough workers.
  const bool over = counts && ResetsLeft() == 0;
  if (!(over && options_.reset_window == 0) && !EnoughReady(gathering())) return;
  if (over) {
    EndJob(1, "the limit of " + std::to_string(options_.reset_limit) +
                  " resets is used up (--reset-limit, or --max-restarts of nodes): raise it, or "
                  "see above why the ranks change");
    return;
  }
  if (counts) changes_.resets.push_back(now_);
  Propose(NextMembers(), random);
}

// Once for each generation that ends.
void Coordinator::JudgeSuspects() {
  if (suspects_judged_in_ == last_generation_) return;
  suspects_judged_in_ = last_generation_;
  std::vector<std::pair<uint64_t, WorkerId>> arrivals;
  for (const auto& [id, process] : processes_) {
    if (!process.leaving) arrivals.emplace_back(process.arrival, id);
  }
  std::sort(arrivals.begin(), arrivals.end());
  std::vector<WorkerId> workers;
  for (const auto& [arrival, id] : arrivals) workers.push_back(id);
  for (WorkerId worker : suspects_.EndOfGeneration(workers)) {
    const std::string host = processes_.at(worker).place.first;
    Evict(worker, "and another worker could not reach each other twice in a row");
    OnHostFailure(host, true);  // a new worker there could not reach the other one either
  }
}

bool Coordinator::EnoughReady(Gathering* gather) {
  const bool patient = last_generation_ == 0 && now_ < After(ticks_.first, options_.start_wait);
  const int needed = std::max(1, patient ? options_.np : options_.min_np);
  // In the first generation, workers beyond np take no place of the first np.
  const size_t count = CountReady(patient ? static_cast<size_t>(needed) : processes_.size());
  const bool settled =
      next_worker_ > 1 && std::all_of(processes_.begin(), processes_.end(),
                                      [](const auto& one) { return one.second.registered; });
  // A giver does not wait for hosts that may never come. If no worker is starting, it gives its
  // state to those that are ready.
  const bool gives = handover_.giver != kNobody && settled && count > 0;
  if (count >= static_cast<size_t>(needed) || gives) {
    gather->shortage.reset();
    return true;
  }
  if (!gather->shortage) gather->shortage = Shortage{now_};
  Shortage& shortage = *gather->shortage;
  if (!shortage.noted && now_ >= After(shortage.since, settled ? kSettled : kStarting)) {
    shortage.noted = true;
    effects_.notes.push_back("the job waits: it has " + std::to_string(count) + " of " +
                             std::to_string(needed) + " workers");
  }
  if (now_ >= After(shortage.since, options_.min_wait)) {
    EndJob(1, "there were fewer than " + std::to_string(needed) + " workers for " +
                  SecondsText(options_.min_wait) +
                  ": is there a host that can take more, and does the program call init?");
  }
  return false;
}

// Takes the survivors, then waiting workers up to max_np: those that registered first; in the first
// generation those with the lowest ids, which are in the order of hosts and slots. Then groups the
// members by host, in the order in which the hosts appear. So survivors keep their order, the ranks
// of a host are side by side, and rank 0 is a survivor.
std::vector<WorkerId> Coordinator::NextMembers() const {
  std::vector<WorkerId> members;
  for (const Member& member : record_.members) {
    if (processes_.count(member.worker) != 0) members.push_back(member.worker);
  }
  std::vector<std::pair<uint64_t, WorkerId>> waiting;
  for (const auto& [id, process] : processes_) {
    if (!IsReady(process) || IsMember(id)) continue;
    waiting.emplace_back(last_generation_ == 0 ? id : process.arrival, id);
  }
  std::sort(waiting.begin(), waiting.end());
  // At least one worker has to take the state of a giver.
  const auto most =
      static_cast<size_t>(std::max(handover_.giver == kNobody ? 1 : 2, options_.max_np));
  const size_t survivors = members.size();
  for (const auto& [arrival, id] : waiting) {
    if (members.size() < most) members.push_back(id);
  }
  std::sort(members.begin() + static_cast<std::ptrdiff_t>(survivors), members.end());
  std::map<std::string, size_t> first;  // of each host
  for (size_t i = 0; i < members.size(); ++i) {
    first.emplace(processes_.at(members[i]).place.first, i);
  }
  std::stable_sort(members.begin(), members.end(), [&](WorkerId a, WorkerId b) {
    return first.at(processes_.at(a).place.first) < first.at(processes_.at(b).place.first);
  });
  return members;
}

void Coordinator::Propose(const std::vector<WorkerId>& members, uint64_t random) {
  ++last_generation_;
  handover_.in_record = handover_.giver != kNobody;
  Record record;
  record.generation = last_generation_;
  record.nonce = random;
  bool joins = false;
  bool stays = last_generation_ == 1;
  for (WorkerId worker : members) {
    const Process& process = processes_.at(worker);
    joins = joins || !IsMember(worker);
    stays = stays || IsMember(worker);
    record.members.push_back({worker, process.place.first, process.place.second});
    if (record.position < process.last.position) {
      record.position = process.last.position;
      record.root = static_cast<Rank>(record.members.size()) - 1;
    }
  }
  if (joins) changes_.last_join = now_;
  if (record.position < newest_position_) {
    effects_.notes.push_back("no worker is left that has " + PositionText(newest_position_) +
                             ": the training goes on from " + PositionText(record.position) +
                             ", or from a newer copy");
  } else if (!stays) {
    // All were lost at once, and none has reported its last commit.
    effects_.notes.push_back("no worker of generation " + std::to_string(last_generation_ - 1) +
                             " is left: the training goes on from " +
                             PositionText(record.position) + "; later commits are lost");
  }
  newest_position_ = record.position;
  record_ = std::move(record);
  member_ids_ = {members.begin(), members.end()};
  phase_ = Forming{now_};
  Command propose;
  propose.kind = CommandKind::kPropose;
  propose.record = record_;
  for (WorkerId worker : members) Tell(worker, propose);
  effects_.notes.push_back("generation " + std::to_string(last_generation_) + ": " +
                           std::to_string(members.size()) + " workers from " +
                           PositionText(record_.position));
}

// INT_MAX without a limit.
int Coordinator::ResetsLeft() {
  if (options_.reset_limit < 0) return INT32_MAX;
  while (options_.reset_window > 0 && !changes_.resets.empty() &&
         now_ - changes_.resets.front() > options_.reset_window) {
    changes_.resets.pop_front();
  }
  return std::max(0, options_.reset_limit - static_cast<int>(changes_.resets.size()));
}

// Asks for a stop at the next commit if members have to leave, or if workers wait that may join.
void Coordinator::WatchForChanges(Running* run) {
  bool wanted = false;
  bool waiting = false;
  for (const auto& [id, process] : processes_) {
    if (IsMember(id)) {
      wanted = wanted || process.leaving;
    } else {
      waiting = waiting || IsReady(process);
    }
  }
  DismissLeavers();
  const bool room = member_ids_.size() < static_cast<size_t>(options_.max_np);
  wanted = wanted || (waiting && room && now_ >= changes_.last_join + options_.join_interval &&
                      (ResetsLeft() > 0 || !options_.count_changes));
  // Not before rank 0 trains: in the store this order would replace GO, which it may not have read.
  const WorkerId first = record_.members.front().worker;
  const bool trains = processes_.at(first).last.state == WorkerState::kRunning;
  if (!wanted || run->change_pending || !trains) return;
  run->change_pending = true;
  Tell(first, CommandKind::kChangePending);
}

void Coordinator::StartWorkers() {
  std::set<Place> taken;
  int count = 0;
  for (const auto& [id, process] : processes_) {
    taken.insert(process.place);
    count += process.leaving ? 0 : 1;
  }
  for (const auto& [id, ending] : ending_) taken.insert(ending.place);
  for (; count < options_.max_np + options_.spares; ++count) {
    const std::optional<Place> place = hosts_.Free(now_, taken);
    if (!place) return;
    taken.insert(*place);
    Process process;
    process.place = *place;
    process.heard = now_;
    process.started = true;
    effects_.starts.push_back({next_worker_, *place});
    processes_.emplace(next_worker_++, std::move(process));
  }
}

}  // namespace tfring::membership
