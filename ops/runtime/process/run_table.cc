#include "ops/runtime/process/run_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/runtime/protocol/message/text.h"

namespace tfring {
namespace {

// Failed runs are remembered for the calls that their threads are just about to make.
constexpr size_t kMaxFailedRuns = 256;

}  // namespace

bool RunTable::Begin(uint64_t run, ProcessSetId set) {
  if (run == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t before = withdrawals_.size();
  BeginLocked(run, set);
  if (runs_[run].failed.ok()) open_.insert(run);
  return withdrawals_.size() > before;
}

uint64_t RunTable::BeginLocked(uint64_t run, ProcessSetId set) {
  Run& caller = runs_[run];
  const auto [began, first] = caller.began.emplace(set, AttemptLocked(set));
  // The members of this set would not learn of the failure otherwise.
  if (first && !caller.failed.ok()) LeaveLocked(set, caller.failed);
  return began->second;
}

uint64_t RunTable::AttemptLocked(ProcessSetId set) const {
  const auto known = sets_.find(set);
  return known == sets_.end() ? 0 : known->second.attempt;
}

uint64_t RunTable::Attempt(ProcessSetId set) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return AttemptLocked(set);
}

void RunTable::End(uint64_t run) {
  std::lock_guard<std::mutex> lock(mutex_);
  runs_.erase(run);
  open_.erase(run);
}

bool RunTable::Fail(uint64_t run, const Status& cause) {
  if (run == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  Run& failed = runs_[run];
  if (!failed.failed.ok()) return false;
  failed.failed = cause;
  open_.erase(run);
  failed_.push_back(run);
  bool left = false;
  for (const auto& [set, attempt] : failed.began) {
    if (sets_[set].attempt != attempt) continue;  // over already, because of another rank or run
    LeaveLocked(set, cause);
    left = true;
  }
  if (failed_.size() > kMaxFailedRuns) {
    runs_.erase(failed_.front());
    open_.erase(failed_.front());
    failed_.pop_front();
  }
  return left;
}

bool RunTable::Leave(const std::map<ProcessSetId, uint64_t>& attempts, const Status& cause) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool left = false;
  for (const auto& [set, attempt] : attempts) {
    if (sets_[set].attempt != attempt) continue;
    LeaveLocked(set, cause);
    left = true;
  }
  return left;
}

void RunTable::LeaveLocked(ProcessSetId id, const Status& cause) {
  Set& set = sets_[id];
  withdrawals_.push_back({id, set.attempt, cause});
  ++set.attempt;
  set.error = StepFailed("a later call of this step",
                         "the step of this rank failed: " + Shortened(cause.ToString()));
}

Result<uint64_t> RunTable::Admit(uint64_t run, ProcessSetId set) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t began = run == 0 ? AttemptLocked(set) : BeginLocked(run, set);
  // It is not behind, either, if the set was removed just now: the engine ends the call then.
  if (began >= AttemptLocked(set)) return began;
  return sets_[set].error;
}

bool RunTable::InRun(ProcessSetId set) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(open_.begin(), open_.end(),
                     [&](uint64_t run) { return runs_.at(run).began.count(set) > 0; });
}

void RunTable::OnLeft(const AttemptEnd& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  Set& left = sets_[end.process_set];
  if (left.attempt != end.attempt) return;  // a run of this rank failed at the same time
  ++left.attempt;
  left.error = end.error;
  ++left_for_others_;
}

uint64_t RunTable::left_for_others() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return left_for_others_;
}

void RunTable::KeepOnly(const ProcessSets& sets) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = sets_.begin(); it != sets_.end();) {
    it = sets.Find(it->first) == nullptr ? sets_.erase(it) : std::next(it);
  }
}

void RunTable::Drain(std::vector<Withdrawal>* out) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Withdrawal& withdrawal : withdrawals_) out->push_back(std::move(withdrawal));
  withdrawals_.clear();
}

bool RunTable::HasWithdrawals() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !withdrawals_.empty();
}

size_t RunTable::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return runs_.size();
}

}  // namespace tfring
