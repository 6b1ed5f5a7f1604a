// What a coordinator that was started again takes over from the one before it.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/membership/coordinator.h"

namespace tfring::membership {
namespace {

// A worker that is still unknown may have an id above the highest known one. New ids leave this
// gap, so that no id is used twice.
constexpr WorkerId kUnheardIds = 1000;

}  // namespace

void Coordinator::OnLiving(const LivingProcess& living) {
  const WorkerId id = living.worker;
  next_worker_ = std::max(next_worker_, id + 1);
  const auto found = processes_.find(id);
  if (found != processes_.end()) {
    found->second.started = true;
  } else if (rebuilding_ && over_.count(id) == 0) {
    Process process;
    process.place = living.place;
    process.heard = now_;
    process.started = true;
    processes_.emplace(id, std::move(process));
  } else {  // it was taken for dead, or has come back too late
    over_.insert(id);
    effects_.kills.push_back(id);
  }
}

// Whether a worker may be in the job. A worker that has been in a generation and that this
// coordinator has never heard may be only while it rebuilds, or as a member of the newest
// generation.
bool Coordinator::Adopt(WorkerId worker, const Report& report) const {
  if (report.generation == 0 || rebuilding_) return true;
  const auto found = processes_.find(worker);
  if (found == processes_.end()) return false;
  return found->second.registered || (IsMember(worker) && report.generation <= record_.generation);
}

void Coordinator::TakeRecord(Record record) {
  if (record.generation <= record_.generation) return;
  record_ = std::move(record);
  member_ids_.clear();
  for (const Member& member : record_.members) {
    member_ids_.insert(member.worker);
    next_worker_ = std::max(next_worker_, member.worker + 1);
  }
}

// Whether it is too early to decide anything; `someone` was heard of in this Step.
bool Coordinator::StillRebuilds(bool someone) {
  TimePoint& until = rebuilding_->until;
  if (someone && until == kNever) until = After(now_, options_.rebuild_wait);
  if (now_ >= ticks_.next) ticks_.next = After(now_, options_.rebuild_wait / 10);
  if (now_ < until) return true;
  Rebuild();
  return false;
}

// Continues with the newest generation that a worker has reported. Members that were not heard are
// lost. A worker of an older generation that is not in the newest was taken for dead: its state may
// differ at the same commit.
void Coordinator::Rebuild() {
  rebuilding_.reset();
  if (next_worker_ > options_.first_worker) next_worker_ += kUnheardIds;
  // There was a generation, and no worker has reported its members.
  const bool unknown = record_.generation == 0 && last_generation_ != 0;
  std::vector<WorkerId> silent;
  std::vector<WorkerId> old;
  for (auto& [id, process] : processes_) {
    process.leaving = process.leaving || !hosts_.Has(process.place);
    if (process.last.generation != 0 && !IsMember(id)) old.push_back(id);
    if (!process.registered && unknown) silent.push_back(id);
  }
  for (WorkerId id : old) Evict(id, "was in an older generation than the newest");
  for (WorkerId id : silent) Evict(id, "says nothing to the new coordinator");
  if (record_.generation == 0) return;
  last_generation_ = std::max(last_generation_, record_.generation);
  phase_ = Forming{now_};
  std::string lost;
  for (const Member& member : record_.members) {
    const auto found = processes_.find(member.worker);
    if (found == processes_.end()) {
      over_.insert(member.worker);
      lost += (lost.empty() ? "worker " : ", worker ") + std::to_string(member.worker) + " on " +
              member.host;
      continue;
    }
    const Report& last = found->second.last;
    const bool connected =
        last.state >= WorkerState::kSync && last.generation == record_.generation;
    if (connected) phase_ = Running{record_.position.step, now_};
  }
  effects_.notes.push_back("generation " + std::to_string(record_.generation) + " of " +
                           std::to_string(record_.members.size()) +
                           " workers was there before this coordinator");
  if (!lost.empty()) StartRound("nothing was heard of " + lost, true);
  for (const auto& [id, process] : processes_) {
    if (IsMember(id) && process.registered) OnMemberReport(process);
  }
}

}  // namespace tfring::membership
