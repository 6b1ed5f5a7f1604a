#include "ops/runtime/protocol/negotiation/participant.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/protocol/negotiation/fusion_planner.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/negotiated_values.h"

namespace tfring {
namespace {

std::string PlanName(const Plan& plan) { return "plan " + std::to_string(plan.sequence); }

}  // namespace

Status Participant::Submit(CallId id, Request request, uint64_t attempt, TimePoint now) {
  const ProcessSetId set = request.process_set;
  if (attempt < AttemptOf(set)) return attempts_[set].error;
  TFRING_CHECK(calls_.Find(set, request.name) == nullptr)
      << Describe(request) << " was submitted twice";
  const uint32_t cache_id = known_.IdFor(request);
  const bool in_lock = cache_id != 0 && locked_.Takes(cache_id);
  if (!in_lock) locked_.StopFor(request);
  if (cache_id == 0) {
    outgoing_.Last()->requests.push_back(request);
    request.layout.clear();  // rank 0 keeps it
  }
  calls_.Add({id, std::move(request), attempt, cache_id});
  if (cache_id == 0) return OkStatus();
  ++cache_hits_;
  if (in_lock) {
    locked_.OnCall(cache_id, now);
  } else {
    outgoing_.Last()->cache_ids.push_back(cache_id);
  }
  return OkStatus();
}

uint64_t Participant::AttemptOf(ProcessSetId set) const {
  const auto it = attempts_.find(set);
  return it == attempts_.end() ? 0 : it->second.number;
}

void Participant::Withdraw(ProcessSetId set, uint64_t attempt, const std::string& why) {
  // Left already, because of another rank; or the set was removed meanwhile.
  if (attempt < AttemptOf(set) || process_sets_->Find(set) == nullptr) return;
  locked_.Stop({UnlockCause::kStepFailed, why});
  bool waits = false;
  calls_.ForEach([&](const WaitingCall& call) {
    waits = waits || (call.request.process_set == set && call.attempt == attempt);
  });
  const std::string reported =
      waits ? why
            : why +
                  " (no collective of it was waiting then, so ranks that have completed their "
                  "step may have other variables: broadcast them)";
  Leave(set, StepFailed("a later call of this step", why), Aborted(reported));
}

// `reported` goes to rank 0: why this rank is the first to leave; ok if it follows.
void Participant::Leave(ProcessSetId set, const Status& error, Status reported) {
  Attempt& attempt = attempts_[set];
  ++attempt.number;
  attempt.error = error;
  // What was submitted before belongs to the attempt before.
  const RequestBatch* batch = outgoing_.Last();
  if (!batch->requests.empty() || !batch->cache_ids.empty()) outgoing_.BeginBatch();
  outgoing_.Last()->withdrawals.emplace_back(set, std::move(reported));
}

Status Participant::OnLock(const LockMessage& lock, TimePoint now) {
  if (locked_.schedule() == nullptr && lock.id <= last_sequence_) {
    return Internal("lock " + std::to_string(lock.id) + " came after plan " +
                    std::to_string(last_sequence_));
  }
  TFRING_RETURN_IF_ERROR(locked_.OnLock(lock, AttemptOf(kGlobalProcessSet), now));
  last_sequence_ = lock.id;
  return OkStatus();
}

Status Participant::OnUnlock(const LockMessage& unlock, std::vector<uint64_t>* recalled) {
  TFRING_RETURN_IF_ERROR(locked_.OnUnlock(unlock, recalled));
  last_sequence_ = unlock.id + unlock.high;
  return OkStatus();
}

Status Participant::OnPlan(PlanRun* run) {
  Plan& plan = run->plan;
  if (plan.sequence <= last_sequence_) {
    return Internal(PlanName(plan) + " came after plan " + std::to_string(last_sequence_));
  }
  last_sequence_ = plan.sequence;
  if (plan.items.empty()) return Internal(PlanName(plan) + " has no items");
  if (plan.error.ok()) TFRING_RETURN_IF_ERROR(FindMembers(run));
  if (!Traits(plan.kind).fuses && plan.items.size() > 1) {
    return Internal(PlanName(plan) + " fuses " + CollectiveKindName(plan.kind) + "s");
  }
  // First all checks and then the calls, so that a wrong plan takes none.
  std::vector<WaitingCall*> calls;
  for (PlanItem& item : plan.items) {
    WaitingCall* call = nullptr;
    TFRING_RETURN_IF_ERROR(FindCall(*run, &item, &call));
    calls.push_back(call);
  }
  if (plan.error.ok()) TFRING_RETURN_IF_ERROR(ChangeSets(run));
  if (plan.ends_attempt && calls[0]->attempt == AttemptOf(plan.process_set)) {
    Status error = plan.error;
    if (error.code() != StatusCode::kAborted) {
      error = StepFailed("a later call of this step", "the step failed: " + error.ToString());
    }
    // The runs of this rank get the error itself. One whose next call is refused before TensorFlow
    // has the answer to this one would otherwise end with another class of error than its peers'.
    left_.push_back({plan.process_set, calls[0]->attempt, plan.error});
    Leave(plan.process_set, error, OkStatus());
  }
  for (WaitingCall* call : calls) {
    run->calls.push_back(call->id);
    calls_.Take(call);
  }
  return OkStatus();
}

// Who takes part. This rank has to be one of them.
Status Participant::FindMembers(PlanRun* run) const {
  const Plan& plan = run->plan;
  const std::string set = "process set " + std::to_string(plan.process_set);
  if (!process_sets_->Contains(plan.process_set, rank_)) {
    return Internal(PlanName(plan) + " is for " + set + ", of which rank " + std::to_string(rank_) +
                    " is no member");
  }
  run->members = *process_sets_->Find(plan.process_set);
  if (plan.kind == CollectiveKind::kSendRecv) {
    run->members = {std::min(plan.root, plan.peer), std::max(plan.root, plan.peer)};
  }
  for (Rank rank : plan.absent) {
    const auto it = std::lower_bound(run->members.begin(), run->members.end(), rank);
    if (it == run->members.end() || *it != rank) {
      return Internal(PlanName(plan) + " goes without rank " + std::to_string(rank) +
                      ", which is no member of " + set);
    }
    run->members.erase(it);
  }
  if (!std::binary_search(run->members.begin(), run->members.end(), rank_)) {
    return Internal(PlanName(plan) + " came to rank " + std::to_string(rank_) +
                    ", which takes no part in it");
  }
  return OkStatus();
}

// Fills in what a cache id means, finds the call of this rank, checks that it is the one that the
// plan runs, and learns the id that the plan gives to it.
Status Participant::FindCall(const PlanRun& run, PlanItem* item, WaitingCall** call) {
  const Plan& plan = run.plan;
  const KnownIds::Known* known = known_.Find(item->cache_id);
  if (item->name.empty()) {
    if (known == nullptr || known->request.process_set != plan.process_set) {
      return Internal(PlanName(plan) + " names unknown cache id " + std::to_string(item->cache_id));
    }
    item->name = known->request.name;
    item->negotiated_values = known->negotiated_values;
  } else if (known != nullptr) {
    return Internal(PlanName(plan) + " uses cache id " + std::to_string(item->cache_id) + " again");
  }
  *call = calls_.Find(plan.process_set, item->name);
  if (*call == nullptr || (*call)->in_plan) {
    return Internal(PlanName(plan) + " holds tensor '" + item->name + "', which rank " +
                    std::to_string(rank_) + " has not asked for");
  }
  (*call)->in_plan = true;
  if (!plan.error.ok()) return OkStatus();
  const Request& request = (*call)->request;
  TFRING_RETURN_IF_ERROR(CheckItem(run, *item, request));
  if (item->cache_id != 0 && known == nullptr) {
    known_.Learn(item->cache_id, request, item->negotiated_values);
  }
  return OkStatus();
}

// That the plan is what this rank requested, and has values that it can work with.
Status Participant::CheckItem(const PlanRun& run, const PlanItem& item,
                              const Request& request) const {
  const Plan& plan = run.plan;
  if (!SameCollective(plan, PlanFor(request)) || !request.refusal.empty()) {
    return Internal(PlanName(plan) + " is not what rank " + std::to_string(rank_) +
                    " asked for under the name '" + item.name + "'");
  }
  const bool asked = request.path == DataPath::kDevice && Traits(plan.kind).uses_backend;
  if (plan.path == DataPath::kDevice && (!asked || !plan.absent.empty())) {
    return Internal(PlanName(plan) + " runs on devices, but rank " + std::to_string(rank_) +
                    " did not ask for that under the name '" + item.name +
                    "', or a rank is absent");
  }
  const Status possible = CheckAbsent(request, plan.absent);
  if (!possible.ok()) return Internal(PlanName(plan) + ": " + possible.message());
  if (!NegotiatedValuesFit(item.negotiated_values, run.members, rank_, request)) {
    return Internal("the plan for tensor '" + item.name + "' has wrong negotiated values " +
                    ShapeString(item.negotiated_values) + ": they do not fit the " +
                    Describe(request) + " on rank " + std::to_string(rank_));
  }
  if (item.cache_id != 0 && (!Traits(request.kind).cacheable || !plan.absent.empty())) {
    return Internal(PlanName(plan) + " gives tensor '" + item.name + "' a cache id");
  }
  return OkStatus();
}

Status Participant::ChangeSets(PlanRun* run) {
  const Plan& plan = run->plan;
  const std::vector<int64_t>& values = plan.items[0].negotiated_values;
  Status status;
  if (plan.kind == CollectiveKind::kAddProcessSet) {
    status = process_sets_->Add(static_cast<ProcessSetId>(values[0]),
                                std::vector<Rank>(values.begin() + 1, values.end()));
  } else if (plan.kind == CollectiveKind::kRemoveProcessSet) {
    const auto set = static_cast<ProcessSetId>(values[0]);
    known_.ForgetSet(set);
    attempts_.erase(set);
    const std::vector<Rank>* members = process_sets_->Find(set);
    if (members != nullptr) run->disbanded = *members;
    status = process_sets_->Remove(set);
    if (process_sets_->FindEqual(run->disbanded) >= 0) run->disbanded.clear();
  }
  return status.ok() ? status : Internal(PlanName(plan) + ": " + status.message());
}

}  // namespace tfring
