#include "ops/runtime/protocol/negotiation/participant.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ops/runtime/protocol/negotiation/fusion_planner.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/negotiated_values.h"

namespace tfring {
namespace {

std::string PlanName(const Plan& plan) { return "plan " + std::to_string(plan.sequence); }

// What a plan says that moves no data.
bool ValuesFit(const std::vector<int64_t>& values, const std::vector<Rank>& members,
               const Request& request) {
  if (values.empty()) return false;
  switch (request.kind) {
    case CollectiveKind::kJoin:
      return values.size() == 1 && std::count(members.begin(), members.end(), values[0]) == 1;
    case CollectiveKind::kAddProcessSet:
      return values[0] > kGlobalProcessSet && values[0] <= INT32_MAX &&
             std::equal(values.begin() + 1, values.end(), request.splits.begin(),
                        request.splits.end());
    default:
      return values == request.splits;
  }
}

// How a call ends whose process set was removed while it was on its way.
Plan EndOf(const Request& request) {
  Plan plan;
  plan.kind = request.kind;
  plan.process_set = request.process_set;
  plan.error =
      InvalidArgument(Describe(request) + ": process set " + std::to_string(request.process_set) +
                      " was removed before all of its ranks had made the call");
  plan.items.push_back({request.name, 0, {}});
  return plan;
}

}  // namespace

void Participant::Submit(Request request) {
  const uint32_t id = known_.IdFor(request);
  if (id != 0) {
    ++cache_hits_;
    cache_ids_.push_back(id);
    sent_ids_[id] = {request.process_set, request.name};
  } else {
    requests_.push_back(request);
  }
  const ProcessSetId set = request.process_set;
  const std::string name = request.name;
  unplanned_.Put(set, name, {std::move(request), id});
}

void Participant::TakeOutgoing(std::vector<Request>* requests, std::vector<uint32_t>* cache_ids) {
  *requests = std::move(requests_);
  *cache_ids = std::move(cache_ids_);
  requests_.clear();
  cache_ids_.clear();
}

Status Participant::OnResend(const std::vector<uint32_t>& cache_ids, std::vector<Plan>* ended) {
  for (uint32_t id : cache_ids) {
    const auto sent = sent_ids_.find(id);
    if (sent == sent_ids_.end()) {
      return Internal("it asks again for cache id " + std::to_string(id) +
                      ", which is not in flight");
    }
    Unplanned* call = unplanned_.Find(sent->second.first, sent->second.second);
    if (call == nullptr)
      return Internal("the call behind cache id " + std::to_string(id) + " is gone");
    requests_.push_back(call->request);
    if (call->set_removed) {
      // There is nothing to ask for, but rank 0 counts what it waits for.
      ended->push_back(EndOf(call->request));
      Refuse(ended->back().error, &requests_.back());
      unplanned_.Erase(sent->second.first, sent->second.second);
    } else {
      call->sent_id = 0;
    }
    requests_.back().resent = true;
    sent_ids_.erase(sent);
    known_.Forget(id);
  }
  return OkStatus();
}

Status Participant::OnPlan(Plan* plan) {
  if (plan->sequence <= last_sequence_) {
    return Internal(PlanName(*plan) + " came after plan " + std::to_string(last_sequence_));
  }
  last_sequence_ = plan->sequence;
  if (plan->items.empty()) return Internal(PlanName(*plan) + " has no items");
  if (plan->error.ok()) TFRING_RETURN_IF_ERROR(FindMembers(plan));
  if (!Fuses(plan->kind) && plan->items.size() > 1) {
    return Internal(PlanName(*plan) + " fuses " + CollectiveKindName(plan->kind) + "s");
  }
  for (PlanItem& item : plan->items) TFRING_RETURN_IF_ERROR(TakeItem(*plan, &item));
  for (uint32_t id : plan->evicted) known_.Forget(id);
  return plan->error.ok() ? ChangeSets(*plan) : OkStatus();
}

// Who takes part; this rank has to be one of them.
Status Participant::FindMembers(Plan* plan) const {
  const std::vector<Rank>* members = process_sets_->Find(plan->process_set);
  if (members == nullptr || process_sets_->PositionOf(plan->process_set, rank_) < 0) {
    return Internal(PlanName(*plan) + " is for process set " + std::to_string(plan->process_set) +
                    ", of which rank " + std::to_string(rank_) + " is no member");
  }
  plan->members = *members;
  if (plan->kind == CollectiveKind::kSendRecv) {
    plan->members = {std::min(plan->root, plan->peer), std::max(plan->root, plan->peer)};
  }
  for (Rank rank : plan->absent) {
    const auto it = std::lower_bound(plan->members.begin(), plan->members.end(), rank);
    if (it == plan->members.end() || *it != rank) {
      return Internal(PlanName(*plan) + " goes without rank " + std::to_string(rank) +
                      ", which is no member of process set " + std::to_string(plan->process_set));
    }
    plan->members.erase(it);
  }
  if (!std::binary_search(plan->members.begin(), plan->members.end(), rank_)) {
    return Internal(PlanName(*plan) + " came to rank " + std::to_string(rank_) +
                    ", which takes no part in it");
  }
  return OkStatus();
}

Status Participant::ChangeSets(const Plan& plan) {
  const std::vector<int64_t>& values = plan.items[0].negotiated_values;
  Status status;
  if (plan.kind == CollectiveKind::kAddProcessSet) {
    status = process_sets_->Add(static_cast<ProcessSetId>(values[0]),
                                std::vector<Rank>(values.begin() + 1, values.end()));
  } else if (plan.kind == CollectiveKind::kRemoveProcessSet) {
    const auto set = static_cast<ProcessSetId>(values[0]);
    known_.ForgetSet(set);
    unplanned_.ForEach(set, [](Unplanned* call) { call->set_removed = true; });
    status = process_sets_->Remove(set);
  }
  return status.ok() ? status : Internal(PlanName(plan) + ": " + status.message());
}

// Fills in what the id stands for, checks it against the call of this rank and ends the call.
Status Participant::TakeItem(const Plan& plan, PlanItem* item) {
  if (item->name.empty()) {
    const KnownIds::Known* known = known_.Find(item->cache_id);
    if (known == nullptr || known->request.process_set != plan.process_set) {
      return Internal(PlanName(plan) + " names unknown cache id " + std::to_string(item->cache_id));
    }
    item->name = known->request.name;
    item->negotiated_values = known->negotiated_values;
  } else if (item->cache_id != 0 && known_.Find(item->cache_id) != nullptr) {
    return Internal(PlanName(plan) + " uses cache id " + std::to_string(item->cache_id) + " again");
  }
  Unplanned* call = unplanned_.Find(plan.process_set, item->name);
  if (call == nullptr) {
    return Internal(PlanName(plan) + " holds tensor '" + item->name + "', which rank " +
                    std::to_string(rank_) + " has not asked for");
  }
  if (plan.error.ok()) {
    TFRING_RETURN_IF_ERROR(CheckItem(plan, *item, call->request));
    if (item->cache_id != 0 && known_.Find(item->cache_id) == nullptr) {
      known_.Learn(item->cache_id, call->request, item->negotiated_values);
    }
  }
  if (call->sent_id != 0) sent_ids_.erase(call->sent_id);
  unplanned_.Erase(plan.process_set, item->name);
  return OkStatus();
}

// A backend trusts the plan with this rank's buffers, so it has to be the call that was made.
Status Participant::CheckItem(const Plan& plan, const PlanItem& item,
                              const Request& request) const {
  const bool same =
      plan.kind == request.kind && plan.dtype == request.dtype &&
      (!Reduces(request.kind) || (plan.op == request.op && plan.prescale == request.prescale &&
                                  plan.postscale == request.postscale)) &&
      (!HasRoot(request.kind) || plan.root == request.root) &&
      (request.kind != CollectiveKind::kSendRecv || plan.peer == request.peer) &&
      request.refusal.empty();
  if (!same) {
    return Internal(PlanName(plan) + " is not what rank " + std::to_string(rank_) +
                    " asked for under the name '" + item.name + "'");
  }
  const Status possible = CheckAbsent(request, plan.absent);
  if (!possible.ok()) return Internal(PlanName(plan) + ": " + possible.message());
  const bool fits = MovesData(request.kind)
                        ? NegotiatedValuesFit(item.negotiated_values, plan.members, rank_, request)
                        : ValuesFit(item.negotiated_values, plan.members, request);
  if (!fits) return Internal("the plan for tensor '" + item.name + "' has wrong first dimensions");
  if (item.cache_id != 0 && (!Cacheable(request.kind) || !plan.absent.empty())) {
    return Internal(PlanName(plan) + " gives tensor '" + item.name + "' a cache id");
  }
  return OkStatus();
}

}  // namespace tfring
