#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "ops/runtime/protocol/message/text.h"
#include "ops/runtime/protocol/negotiation/participant.h"

// A rank's part in a lock: see docs/adr/0045-locked-schedule.md.
namespace tfring {
namespace {

std::string LockName(uint64_t id) { return "lock " + std::to_string(id); }

}  // namespace

Status Participant::OnLock(const LockMessage& lock, TimePoint now) {
  if (lock_ != nullptr || lock.id <= last_sequence_) {
    return Internal(LockName(lock.id) + " came " +
                    (lock_ != nullptr ? "in " + LockName(lock_->id())
                                      : "after plan " + std::to_string(last_sequence_)));
  }
  TFRING_RETURN_IF_ERROR(CheckLock(lock));
  last_sequence_ = lock.id;
  lock_ = std::make_unique<LockedSchedule>(lock.id, lock.batches);
  std::optional<UnlockReason> why_not = WhyNot(lock);
  lock_news_.push_back(News());
  if (why_not) {
    Freeze(true, std::move(*why_not));
    return OkStatus();
  }
  // Rank 0 drops the requests of these calls.
  for (const auto& sent : sent_ids_) lock_->OnCall(sent.first, now);
  EnterBatches(now);
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
          known->request.kind != CollectiveKind::kAllreduce ||
          known->request.path != DataPath::kCpu || !ids.insert(id).second) {
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

// Nothing if all that this rank has sent is calls of the lock, which wait.
std::optional<UnlockReason> Participant::WhyNot(const LockMessage& lock) const {
  if (declines_locks_) return UnlockReason{UnlockCause::kShutdown, ""};
  if (lock.attempt != AttemptOf(kGlobalProcessSet)) {
    return UnlockReason{UnlockCause::kStepFailed, ""};
  }
  std::set<uint32_t> ids;
  for (const LockedBatch& batch : lock.batches) ids.insert(batch.begin(), batch.end());
  std::optional<UnlockReason> why;
  CallId first = 0;
  waiting_.ForEach([&](const WaitingCall& call) {
    const bool sent = sent_ids_.count(call.sent_id) > 0;
    if (sent && ids.count(call.sent_id) > 0 && call.attempt == lock.attempt) return;
    if (why && call.id > first) return;
    first = call.id;
    why = call.attempt == lock.attempt ? WhyUnlockedBy(call.request)
                                       : UnlockReason{UnlockCause::kStepFailed, ""};
  });
  if (!why && !outgoing_.empty()) why = UnlockReason{UnlockCause::kStepFailed, ""};
  return why;
}

// By a call that is not in the lock.
UnlockReason Participant::WhyUnlockedBy(const Request& request) const {
  if (request.kind == CollectiveKind::kJoin) return {UnlockCause::kJoin, ""};
  if (ChangesProcessSets(request.kind)) return {UnlockCause::kProcessSets, ""};
  for (size_t i = 0; i < lock_->batches(); ++i) {
    for (uint32_t id : lock_->batch(i)) {
      const KnownIds::Known* known = known_.Find(id);
      if (known != nullptr && known->request.name == request.name &&
          known->request.process_set == request.process_set) {
        return {UnlockCause::kChangedCall, request.name};
      }
    }
  }
  return {UnlockCause::kOtherCall, request.name};
}

Status Participant::OnStop(const LockMessage& stop) {
  if (lock_ == nullptr || lock_->id() != stop.id) {
    return Internal("it stops " + LockName(stop.id) + ", which is not there");
  }
  StopLock({});
  return OkStatus();
}

void Participant::StopLock(UnlockReason reason) {
  declines_locks_ = declines_locks_ || reason.cause == UnlockCause::kShutdown;
  if (Locked()) Freeze(false, std::move(reason));
}

UnlockReason Participant::WhatWaits() const {
  if (lock_ == nullptr) return {};
  if (!entered_.empty()) {
    return {UnlockCause::kWaited, entered_.begin()->second.front().request.name};
  }
  UnlockReason incomplete{UnlockCause::kIncomplete, ""};
  for (uint32_t id : lock_->batch(lock_->entered())) {
    const KnownIds::Known* known = known_.Find(id);
    if (sent_ids_.count(id) > 0) {
      incomplete.early.push_back(id);
    } else if (known != nullptr && incomplete.text.empty()) {
      incomplete.text = known->request.name;
    }
  }
  return incomplete.text.empty() ? UnlockReason{UnlockCause::kWaited, ""} : incomplete;
}

// The batch that was entered last has to be cut.
UnlockReason Participant::WhyApart(LockedBatch early) const {
  UnlockReason why{UnlockCause::kApart, ""};
  for (uint32_t id : lock_->batch(lock_->entered() - 1)) {
    if (std::count(early.begin(), early.end(), id) == 0) why.text = known_.Find(id)->request.name;
  }
  why.early = std::move(early);
  return why;
}

// What this rank has held back goes out after that, as if there had been no lock.
void Participant::Freeze(bool declined, UnlockReason reason) {
  lock_->Freeze();
  if (!outgoing_.empty()) outgoing_.emplace_back();
  LockMessage frozen;
  frozen.id = lock_->id();
  frozen.entered = lock_->entered();
  frozen.declined = declined;
  reason.text = Shortened(reason.text, kMaxUnlockTextBytes);
  frozen.reason = std::move(reason);
  Batch()->frozen = std::move(frozen);
  if (declined) return;  // it was all sent
  std::vector<std::pair<CallId, uint32_t>> waiting;
  for (const auto& [id, call] : sent_ids_) waiting.emplace_back(call->id, id);
  std::sort(waiting.begin(), waiting.end());
  for (const auto& call : waiting) Batch()->cache_ids.push_back(call.second);
}

void Participant::EnterBatches(TimePoint now) {
  while (const auto number = lock_->Enter(now)) {
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
    LockedBatch early = lock_->Apart();
    if (!early.empty()) Freeze(false, WhyApart(std::move(early)));
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
  lock_news_.push_back(News());
  LockNews& news = lock_news_.back();
  news.over = true;
  news.rounds = unlock.entered / lock_->batches();
  news.rank = unlock.rank;
  news.reason = unlock.reason;
  lock_rounds_ += news.rounds;
  last_sequence_ = lock_->id() + unlock.high;
  entered_.clear();
  lock_.reset();
  return OkStatus();
}

LockNews Participant::News() const {
  LockNews news;
  news.id = lock_->id();
  news.batches = lock_->batches();
  for (size_t i = 0; i < news.batches; ++i) news.tensors += lock_->batch(i).size();
  return news;
}

// No rank is more than a round behind this one.
uint64_t Participant::lock_rounds() const {
  const uint64_t entered = lock_ == nullptr ? 0 : lock_->entered() / lock_->batches();
  return lock_rounds_ + (entered == 0 ? 0 : entered - 1);
}

}  // namespace tfring
