#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "ops/runtime/protocol/negotiation/participant.h"

// A rank's part in a lock: see docs/adr/0045-locked-schedule.md.
namespace tfring {
namespace {

std::string LockName(uint64_t id) { return "lock " + std::to_string(id); }

}  // namespace

Status Participant::OnLock(const LockMessage& lock) {
  if (lock_ != nullptr || lock.id <= last_sequence_) {
    return Internal(LockName(lock.id) + " came " +
                    (lock_ != nullptr ? "in " + LockName(lock_->id())
                                      : "after plan " + std::to_string(last_sequence_)));
  }
  TFRING_RETURN_IF_ERROR(CheckLock(lock));
  last_sequence_ = lock.id;
  const bool fits = FitsLock(lock);
  lock_ = std::make_unique<LockedSchedule>(lock.id, lock.batches);
  if (!fits) {
    Freeze(true);
    return OkStatus();
  }
  // Rank 0 drops the requests of these calls.
  for (const auto& sent : sent_ids_) lock_->OnCall(sent.first);
  EnterBatches();
  return OkStatus();
}

// That this rank knows the requests, and each batch is one collective that can be locked.
Status Participant::CheckLock(const LockMessage& lock) const {
  for (const LockedBatch& batch : lock.batches) {
    std::set<uint32_t> ids;
    Plan plan;
    for (uint32_t id : batch) {
      const KnownIds::Known* known = known_.Find(id);
      if (known == nullptr || known->request.process_set != kGlobalProcessSet ||
          known->request.kind != CollectiveKind::kAllreduce || !ids.insert(id).second) {
        return Internal(LockName(lock.id) + " has cache id " + std::to_string(id) +
                        ", which is unknown, twice in a batch, or cannot be locked");
      }
      const Plan own = PlanFor(known->request);
      if (ids.size() == 1) plan = own;
      if (!SameCollective(plan, own)) {
        return Internal(LockName(lock.id) + " fuses tensor '" + known->request.name +
                        "' with others that are not alike");
      }
    }
  }
  return OkStatus();
}

// Whether all that this rank has sent is calls of the lock, which wait.
bool Participant::FitsLock(const LockMessage& lock) const {
  if (declines_locks_ || !outgoing_.empty() || lock.attempt != AttemptOf(kGlobalProcessSet) ||
      sent_ids_.size() != waiting_.size()) {
    return false;
  }
  std::set<uint32_t> ids;
  for (const LockedBatch& batch : lock.batches) ids.insert(batch.begin(), batch.end());
  return std::all_of(sent_ids_.begin(), sent_ids_.end(), [&](const auto& sent) {
    return ids.count(sent.first) > 0 && sent.second->attempt == lock.attempt;
  });
}

Status Participant::OnStop(const LockMessage& stop) {
  if (lock_ == nullptr || lock_->id() != stop.id) {
    return Internal("it stops " + LockName(stop.id) + ", which is not there");
  }
  StopLock();
  return OkStatus();
}

void Participant::StopLock() {
  if (Locked()) Freeze(false);
}

void Participant::DeclineLocks() {
  declines_locks_ = true;
  StopLock();
}

// What this rank has held back goes out after that, as if there had been no lock.
void Participant::Freeze(bool declined) {
  lock_->Freeze();
  if (!outgoing_.empty()) outgoing_.emplace_back();
  LockMessage frozen;
  frozen.id = lock_->id();
  frozen.entered = lock_->entered();
  frozen.declined = declined;
  Batch()->frozen = std::move(frozen);
  if (declined) return;  // it was all sent
  std::vector<std::pair<CallId, uint32_t>> waiting;
  for (const auto& [id, call] : sent_ids_) waiting.emplace_back(call->id, id);
  std::sort(waiting.begin(), waiting.end());
  for (const auto& call : waiting) Batch()->cache_ids.push_back(call.second);
}

void Participant::EnterBatches() {
  while (const auto number = lock_->Enter()) {
    PlanRun run = RunOf(*number, PlanEntry::kEntered);
    std::vector<WaitingCall>& calls = entered_[run.plan.sequence];
    for (const PlanItem& item : run.plan.items) {
      WaitingCall* call = sent_ids_.at(item.cache_id);
      run.calls.push_back(call->id);
      calls.push_back(std::move(*call));
      sent_ids_.erase(item.cache_id);
      waiting_.Erase(kGlobalProcessSet, item.name);
    }
    entered_runs_.push_back(std::move(run));
  }
}

PlanRun Participant::RunOf(uint64_t number, PlanEntry entry) const {
  PlanRun run;
  const LockedBatch& batch = lock_->batch(number);
  run.plan = PlanFor(known_.Find(batch.front())->request);
  run.plan.sequence = lock_->SequenceOf(number);
  for (uint32_t id : batch) run.plan.items.push_back({known_.Find(id)->request.name, id, {}});
  run.members = *process_sets_->Find(kGlobalProcessSet);
  run.entry = entry;
  return run;
}

bool Participant::HasEntered(uint64_t sequence) const { return entered_.count(sequence) > 0; }

void Participant::OnPlanEnded(uint64_t sequence) {
  if (entered_.erase(sequence) > 0) lock_->OnEnded();
}

Status Participant::OnUnlock(const LockMessage& unlock, std::vector<uint64_t>* recalled) {
  const uint64_t entered = lock_ == nullptr ? 0 : lock_->entered();
  if (!(lock_ != nullptr && lock_->id() == unlock.id && lock_->frozen() &&
        unlock.entered <= entered && entered <= unlock.high &&
        unlock.high - unlock.entered <= lock_->batches())) {
    return Internal("it ends " + LockName(unlock.id) + ", of which batches " +
                    std::to_string(unlock.entered) + " to " + std::to_string(unlock.high) +
                    " are recalled, but this rank has entered " + std::to_string(entered));
  }
  for (uint64_t number = unlock.entered; number < entered; ++number) {
    const uint64_t sequence = lock_->SequenceOf(number);
    const auto calls = entered_.find(sequence);
    if (calls == entered_.end()) {
      return Internal("batch " + std::to_string(number) + " of " + LockName(unlock.id) +
                      " has ended, but not all ranks have entered it");
    }
    recalled->push_back(sequence);
    for (WaitingCall& call : calls->second) {
      const uint32_t id = call.sent_id;
      const std::string name = call.request.name;
      sent_ids_[id] = waiting_.Put(kGlobalProcessSet, name, std::move(call));
    }
  }
  for (uint64_t number = entered; number < unlock.high; ++number) {
    entered_runs_.push_back(RunOf(number, PlanEntry::kVoid));
  }
  last_sequence_ = lock_->id() + unlock.high;
  entered_.clear();
  lock_.reset();
  return OkStatus();
}

}  // namespace tfring
