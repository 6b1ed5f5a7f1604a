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

// For how long too few workers are nothing to speak of: while some are on their way, and else.
constexpr Duration kStarting = 30 * kSecond;
constexpr Duration kSettled = 3 * kSecond;

}  // namespace

void Coordinator::Advance(uint64_t random) {
  if (phase_ == Phase::kForming && AllConnected()) {
    phase_ = Phase::kRunning;
    ran_ = true;
    pending_ = false;
    best_step_ = record_.position.step;
    advanced_at_ = now_;
    for (const Member& member : record_.members) Tell(member.worker, CommandKind::kGo);
  }
  if (phase_ == Phase::kRunning) WatchForChanges();
  if (phase_ == Phase::kRunning && AllStopped()) StartRound("all members have stopped", false);
  if (phase_ == Phase::kGathering && AllStopped()) Close(random);
}

// Ends the present generation. Where nothing failed, members stop by themselves.
void Coordinator::StartRound(const std::string& why, bool failed) {
  if (phase_ == Phase::kOver) return;
  if (phase_ != Phase::kGathering) {
    phase_ = Phase::kGathering;
    round_since_ = now_;
    ends_sent_ = false;
    failed_ = false;
    if (record_.generation != 0) {
      effects_.notes.push_back("generation " + std::to_string(record_.generation) +
                               " ends: " + why);
    }
  }
  failed_ = failed_ || failed;
  if (failed && !ends_sent_) SendEnds();
}

void Coordinator::SendEnds() {
  ends_sent_ = true;
  for (WorkerId member : member_ids_) {
    const auto found = processes_.find(member);
    if (found == processes_.end()) continue;
    const Report& last = found->second.last;
    const bool stops = last.state == WorkerState::kBroken || last.state == WorkerState::kStopping;
    if (stops && last.generation == record_.generation) continue;
    Tell(member, CommandKind::kEnd, "a member was lost, or a collective failed");
  }
}

// One that is still where it was before this generation has not heard of it, and has not moved.
bool Coordinator::HasStopped(const Process& process) {
  const WorkerState state = process.last.state;
  return state == WorkerState::kBroken || state == WorkerState::kWaiting;
}

// Can be a member of the next generation, and has no reason to leave it. The others would wait for
// one that is silent.
bool Coordinator::IsReady(const Process& process) const {
  return process.registered && !process.leaving && HasStopped(process) && IsHeard(process);
}

// Of the `most` that came first, in the order in which they were started.
size_t Coordinator::CountReady(size_t most) const {
  size_t ready = 0;
  for (const auto& [id, process] : processes_) {
    if (process.leaving) continue;
    if (most-- == 0) break;
    ready += IsReady(process) ? 1 : 0;
  }
  return ready;
}

// Whether there is a process, ready or not, that need not leave.
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

// Of the members that live, there is one and all have come to the end of the training.
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

// The first of the leavers whose state is ahead of all states that stay, if somebody may come to
// take it. A worker that wants to leave does not wait until others have been started.
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

// Where all that have the newest state leave, one of them is a member once more, whose state the
// others take. It stays for good if its host may be used again.
void Coordinator::KeepState() {
  const WorkerId before = kept_;
  kept_ = AheadOfAllThatStay();
  if (kept_ == kNobody) return;
  Process& process = processes_.at(kept_);
  if (!process.last.leaving && hosts_.Has(process.place) &&
      hosts_.Usable(now_, process.place.first)) {
    process.leaving = false;
    kept_ = kNobody;
  } else if (kept_ != before) {
    effects_.notes.push_back("worker " + std::to_string(kept_) +
                             " leaves when another worker has its state, " +
                             PositionText(process.last.position));
  }
}

// Lets those go that want to, or have to, and have stopped.
void Coordinator::DismissLeavers() {
  std::vector<WorkerId> leavers;
  for (const auto& [id, process] : processes_) {
    const bool stopped = !IsMember(id) || (phase_ == Phase::kGathering && id != kept_);
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

// Everybody has stopped: the next generation, or the end, or waiting for more workers.
void Coordinator::Close(uint64_t random) {
  if (AllDone()) {
    EndJob(0, "the training is over");
    return;
  }
  // A replacement of all hosts takes two generations, and is one change.
  const bool handed_over = hands_over_ && !failed_;
  JudgeSuspects();
  KeepState();
  DismissLeavers();
  const bool counts = number_ != 0 && !handed_over && (failed_ || options_.count_changes);
  // With a window there may be resets again by the time there are enough workers.
  const bool over = counts && ResetsLeft() == 0;
  if (!(over && options_.reset_window == 0) && !EnoughReady()) return;
  if (over) {
    EndJob(1, "the limit of " + std::to_string(options_.reset_limit) +
                  " resets is used up (--reset-limit, or --max-restarts of nodes): raise it, or "
                  "see above why the ranks change");
    return;
  }
  if (counts) resets_.push_back(now_);
  Propose(NextMembers(), random);
}

// Once for each generation that ends.
void Coordinator::JudgeSuspects() {
  if (judged_ == number_) return;
  judged_ = number_;
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

bool Coordinator::EnoughReady() {
  const bool patient = !ran_ && number_ == 0 && now_ < After(first_step_, options_.start_wait);
  const int needed = std::max(1, patient ? options_.np : options_.min_np);
  // Workers that were started beyond np take nobody's place in the first generation.
  const size_t count = CountReady(patient ? static_cast<size_t>(needed) : processes_.size());
  const bool settled =
      next_worker_ > 1 && std::all_of(processes_.begin(), processes_.end(),
                                      [](const auto& one) { return one.second.registered; });
  // A kept worker does not wait for hosts that may never come. If no other worker is starting, it
  // gives its state to those that are ready.
  const bool gives = kept_ != kNobody && settled && count > 0;
  if (count >= static_cast<size_t>(needed) || gives) {
    short_since_ = kNever;
    return true;
  }
  if (short_since_ == kNever) {
    short_since_ = now_;
    short_told_ = false;
  }
  if (!short_told_ && now_ >= After(short_since_, settled ? kSettled : kStarting)) {
    short_told_ = true;
    effects_.notes.push_back("the job waits: it has " + std::to_string(count) + " of " +
                             std::to_string(needed) + " workers");
  }
  if (now_ >= After(short_since_, options_.min_wait)) {
    EndJob(1, "there were fewer than " + std::to_string(needed) + " workers for " +
                  SecondsText(options_.min_wait) +
                  ": is there a host that can take more, and does "
                  "the program call init?");
  }
  return false;
}

// Survivors first, then who waits: who came first is taken, up to max_np, and into the first
// generation who was started first, in the order in which they were started, that of hosts and
// slots. Then by hosts, in the order in which these appear. So survivors keep their order, the
// ranks of a host are side by side, and rank 0 is a survivor.
std::vector<WorkerId> Coordinator::NextMembers() const {
  std::vector<WorkerId> members;
  for (const Member& member : record_.members) {
    if (processes_.count(member.worker) != 0) members.push_back(member.worker);
  }
  std::vector<std::pair<uint64_t, WorkerId>> waiting;
  for (const auto& [id, process] : processes_) {
    if (!IsReady(process) || IsMember(id)) continue;
    waiting.emplace_back(number_ == 0 ? id : process.arrival, id);
  }
  std::sort(waiting.begin(), waiting.end());
  // Somebody has to take the state of one that is kept for it.
  const auto most = static_cast<size_t>(std::max(kept_ == kNobody ? 1 : 2, options_.max_np));
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
  ++number_;
  hands_over_ = kept_ != kNobody;
  Record record;
  record.generation = number_;
  record.nonce = random;
  bool joins = false;
  bool stays = number_ == 1;
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
  if (joins) last_join_ = now_;
  if (record.position < reached_) {
    effects_.notes.push_back("no worker is left that has " + PositionText(reached_) +
                             ": the training goes on from " + PositionText(record.position) +
                             ", or from a newer copy");
  } else if (!stays) {
    // All were lost at once, and none has told of its last commit.
    effects_.notes.push_back("no worker of generation " + std::to_string(number_ - 1) +
                             " is left: the training goes on from " +
                             PositionText(record.position) + "; later commits are lost");
  }
  reached_ = record.position;
  record_ = std::move(record);
  member_ids_ = {members.begin(), members.end()};
  phase_ = Phase::kForming;
  formed_at_ = now_;
  Command propose;
  propose.kind = CommandKind::kPropose;
  propose.record = record_;
  for (WorkerId worker : members) Tell(worker, propose);
  effects_.notes.push_back("generation " + std::to_string(number_) + ": " +
                           std::to_string(members.size()) + " workers from " +
                           PositionText(record_.position));
}

// INT_MAX without a limit.
int Coordinator::ResetsLeft() {
  if (options_.reset_limit < 0) return INT32_MAX;
  while (options_.reset_window > 0 && !resets_.empty() &&
         now_ - resets_.front() > options_.reset_window) {
    resets_.pop_front();
  }
  return std::max(0, options_.reset_limit - static_cast<int>(resets_.size()));
}

// Asks for a stop at the next commit if members have to go, or workers wait to come and may.
void Coordinator::WatchForChanges() {
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
  wanted = wanted || (waiting && room && now_ >= last_join_ + options_.join_interval &&
                      (ResetsLeft() > 0 || !options_.count_changes));
  // Not before rank 0 trains: in the store the order would replace GO, which it may not have read.
  const WorkerId first = record_.members.front().worker;
  const bool trains = processes_.at(first).last.state == WorkerState::kRunning;
  if (!wanted || pending_ || !trains) return;
  pending_ = true;
  Tell(first, CommandKind::kChangePending);
}

void Coordinator::StartWorkers() {
  std::set<Place> taken;
  int count = 0;
  for (const auto& [id, process] : processes_) {
    taken.insert(process.place);
    count += process.leaving ? 0 : 1;
  }
  for (const auto& [id, ended] : ending_) taken.insert(ended.place);
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
