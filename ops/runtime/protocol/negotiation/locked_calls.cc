#include "ops/runtime/protocol/negotiation/locked_calls.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "ops/runtime/protocol/message/text.h"

namespace tfring {
namespace {

std::string LockName(uint64_t id) { return "lock " + std::to_string(id); }

}  // namespace

Status LockedCalls::OnLock(const LockMessage& lock, uint64_t attempt, TimePoint now) {
  if (schedule_ != nullptr) {
    return Internal(LockName(lock.id) + " came in " + LockName(schedule_->id()));
  }
  TFRING_RETURN_IF_ERROR(CheckLock(lock));
  schedule_ = std::make_unique<LockedSchedule>(lock.id, lock.batches);
  std::optional<UnlockReason> why_not = WhyNot(lock, attempt);
  news_.push_back(News());
  if (why_not) {
    Freeze(true, std::move(*why_not));
    return OkStatus();
  }
  // Rank 0 drops the requests of these calls.
  for (uint32_t id : calls_.SentIds()) schedule_->OnCall(id, now);
  EnterBatches(now);
  return OkStatus();
}

bool LockedCalls::Takes(uint32_t cache_id) const { return Locked() && schedule_->Has(cache_id); }

void LockedCalls::OnCall(uint32_t cache_id, TimePoint now) {
  schedule_->OnCall(cache_id, now);
  EnterBatches(now);
}

void LockedCalls::StopFor(const Request& request) {
  if (Locked()) Stop(WhyUnlockedBy(request));
}

// Internal unless this rank knows all requests of the lock and each batch is one collective that
// can be locked.
Status LockedCalls::CheckLock(const LockMessage& lock) const {
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

// Why this rank declines the lock. Nothing if it does not shut down, it is in the lock's attempt,
// each of its waiting calls was sent, is in the lock and belongs to that attempt, and nothing is
// left to send.
std::optional<UnlockReason> LockedCalls::WhyNot(const LockMessage& lock, uint64_t attempt) const {
  if (declines_) return UnlockReason{UnlockCause::kShutdown, ""};
  if (lock.attempt != attempt) {
    return UnlockReason{UnlockCause::kStepFailed, ""};
  }
  std::set<uint32_t> ids;
  for (const LockedBatch& batch : lock.batches) ids.insert(batch.begin(), batch.end());
  std::optional<UnlockReason> why;
  CallId first = 0;
  calls_.ForEach([&](const WaitingCall& call) {
    const bool sent = calls_.sent(call.sent_id);
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
UnlockReason LockedCalls::WhyUnlockedBy(const Request& request) const {
  if (request.kind == CollectiveKind::kJoin) return {UnlockCause::kJoin, ""};
  if (ChangesProcessSets(request.kind)) return {UnlockCause::kProcessSets, ""};
  for (size_t i = 0; i < schedule_->batches(); ++i) {
    for (uint32_t id : schedule_->batch(i)) {
      const KnownIds::Known* known = known_.Find(id);
      if (known != nullptr && known->request.name == request.name &&
          known->request.process_set == request.process_set) {
        return {UnlockCause::kChangedCall, request.name};
      }
    }
  }
  return {UnlockCause::kOtherCall, request.name};
}

Status LockedCalls::OnStop(const LockMessage& stop) {
  if (schedule_ == nullptr || schedule_->id() != stop.id) {
    return Internal("it stops " + LockName(stop.id) + ", which is not there");
  }
  Stop({});
  return OkStatus();
}

void LockedCalls::Stop(UnlockReason reason) {
  declines_ = declines_ || reason.cause == UnlockCause::kShutdown;
  if (Locked()) Freeze(false, std::move(reason));
}

UnlockReason LockedCalls::WhatWaits() const {
  if (schedule_ == nullptr) return {};
  if (!entered_.empty()) {
    return {UnlockCause::kWaited, entered_.begin()->second.front().request.name};
  }
  UnlockReason incomplete{UnlockCause::kIncomplete, ""};
  for (uint32_t id : schedule_->batch(schedule_->entered())) {
    const KnownIds::Known* known = known_.Find(id);
    if (calls_.sent(id)) {
      incomplete.early.push_back(id);
    } else if (known != nullptr && incomplete.text.empty()) {
      incomplete.text = known->request.name;
    }
  }
  return incomplete.text.empty() ? UnlockReason{UnlockCause::kWaited, ""} : incomplete;
}

// The batch that was entered last has to be cut.
UnlockReason LockedCalls::WhyApart(LockedBatch early) const {
  UnlockReason why{UnlockCause::kApart, ""};
  for (uint32_t id : schedule_->batch(schedule_->entered() - 1)) {
    if (std::count(early.begin(), early.end(), id) == 0) why.text = known_.Find(id)->request.name;
  }
  why.early = std::move(early);
  return why;
}

// What this rank has held back goes out after that, as if there had been no lock.
void LockedCalls::Freeze(bool declined, UnlockReason reason) {
  schedule_->Freeze();
  outgoing_.BeginBatch();
  LockMessage frozen;
  frozen.id = schedule_->id();
  frozen.entered = schedule_->entered();
  frozen.declined = declined;
  reason.text = Shortened(reason.text, kMaxUnlockTextBytes);
  frozen.reason = std::move(reason);
  outgoing_.Last()->frozen = std::move(frozen);
  if (declined) return;  // it was all sent
  RequestBatch* batch = outgoing_.Last();
  for (uint32_t id : calls_.SentIds()) batch->cache_ids.push_back(id);
}

void LockedCalls::EnterBatches(TimePoint now) {
  while (const auto number = schedule_->Enter(now)) {
    PlanRun run = RunOf(*number, PlanEntry::kEntered);
    std::vector<WaitingCall>& calls = entered_[run.plan.sequence];
    for (const PlanItem& item : run.plan.items) {
      calls.push_back(calls_.Take(calls_.FindSent(item.cache_id)));
      run.calls.push_back(calls.back().id);
    }
    runs_.push_back(std::move(run));
    LockedBatch early = schedule_->Apart();
    if (!early.empty()) Freeze(false, WhyApart(std::move(early)));
  }
}

PlanRun LockedCalls::RunOf(uint64_t number, PlanEntry entry) const {
  PlanRun run;
  const LockedBatch& batch = schedule_->batch(number);
  run.plan = PlanFor(known_.Find(batch.front())->request);
  run.plan.sequence = schedule_->SequenceOf(number);
  for (uint32_t id : batch) run.plan.items.push_back({known_.Find(id)->request.name, id, {}});
  run.members = *process_sets_.Find(kGlobalProcessSet);
  run.entry = entry;
  return run;
}

void LockedCalls::OnPlanEnded(uint64_t sequence) {
  if (entered_.erase(sequence) > 0) schedule_->OnEnded();
}

Status LockedCalls::OnUnlock(const LockMessage& unlock, std::vector<uint64_t>* recalled) {
  const uint64_t entered = schedule_ == nullptr ? 0 : schedule_->entered();
  if (!(schedule_ != nullptr && schedule_->id() == unlock.id && schedule_->frozen() &&
        unlock.entered <= entered && entered <= unlock.high &&
        unlock.high - unlock.entered <= schedule_->batches())) {
    return Internal("it ends " + LockName(unlock.id) + ", of which batches " +
                    std::to_string(unlock.entered) + " to " + std::to_string(unlock.high) +
                    " are recalled, but this rank has entered " + std::to_string(entered));
  }
  for (uint64_t number = unlock.entered; number < entered; ++number) {
    const uint64_t sequence = schedule_->SequenceOf(number);
    const auto calls = entered_.find(sequence);
    if (calls == entered_.end()) {
      return Internal("batch " + std::to_string(number) + " of " + LockName(unlock.id) +
                      " has ended, but not all ranks have entered it");
    }
    recalled->push_back(sequence);
    for (WaitingCall& call : calls->second) calls_.Add(std::move(call));
  }
  for (uint64_t number = entered; number < unlock.high; ++number) {
    runs_.push_back(RunOf(number, PlanEntry::kVoid));
  }
  news_.push_back(News());
  LockNews& news = news_.back();
  news.over = true;
  news.rounds = unlock.entered / schedule_->batches();
  news.rank = unlock.rank;
  news.reason = unlock.reason;
  rounds_ += news.rounds;
  entered_.clear();
  schedule_.reset();
  return OkStatus();
}

LockNews LockedCalls::News() const {
  LockNews news;
  news.id = schedule_->id();
  news.batches = schedule_->batches();
  for (size_t i = 0; i < news.batches; ++i) news.tensors += schedule_->batch(i).size();
  return news;
}

// No rank is more than a round behind this one.
uint64_t LockedCalls::rounds() const {
  const uint64_t entered = schedule_ == nullptr ? 0 : schedule_->entered() / schedule_->batches();
  return rounds_ + (entered == 0 ? 0 : entered - 1);
}

}  // namespace tfring
