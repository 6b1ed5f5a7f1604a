#include "ops/runtime/core/participant.h"

#include <string>
#include <utility>

namespace tfring {
namespace {

std::string PlanName(const Plan& plan) { return "plan " + std::to_string(plan.sequence); }

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

Status Participant::OnResend(const std::vector<uint32_t>& cache_ids) {
  for (uint32_t id : cache_ids) {
    const auto sent = sent_ids_.find(id);
    if (sent == sent_ids_.end()) {
      return Internal("it asks again for cache id " + std::to_string(id) +
                      ", which is not in flight");
    }
    Unplanned* call = unplanned_.Find(sent->second.first, sent->second.second);
    if (call == nullptr)
      return Internal("the call behind cache id " + std::to_string(id) + " is gone");
    call->sent_id = 0;
    requests_.push_back(call->request);
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
  if (plan->error.ok() && process_sets_->PositionOf(plan->process_set, rank_) < 0) {
    return Internal(PlanName(*plan) + " is for process set " + std::to_string(plan->process_set) +
                    ", of which rank " + std::to_string(rank_) + " is no member");
  }
  const bool alone =
      plan->kind == CollectiveKind::kAllgather || plan->kind == CollectiveKind::kBarrier;
  if (alone && plan->items.size() > 1) {
    return Internal(PlanName(*plan) + " fuses " + CollectiveKindName(plan->kind) + "s");
  }
  for (PlanItem& item : plan->items) TFRING_RETURN_IF_ERROR(TakeItem(*plan, &item));
  for (uint32_t id : plan->evicted) known_.Forget(id);
  return OkStatus();
}

// Fills in what the id stands for, checks it against the call of this rank and ends the call.
Status Participant::TakeItem(const Plan& plan, PlanItem* item) {
  if (item->name.empty()) {
    const KnownIds::Known* known = known_.Find(item->cache_id);
    if (known == nullptr || known->request.process_set != plan.process_set) {
      return Internal(PlanName(plan) + " names unknown cache id " + std::to_string(item->cache_id));
    }
    item->name = known->request.name;
    item->first_dims = known->first_dims;
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
      known_.Learn(item->cache_id, call->request, item->first_dims);
    }
  }
  if (call->sent_id != 0) sent_ids_.erase(call->sent_id);
  unplanned_.Erase(plan.process_set, item->name);
  return OkStatus();
}

// A backend trusts the plan with this rank's buffers, so it has to be the call that was made.
Status Participant::CheckItem(const Plan& plan, const PlanItem& item,
                              const Request& request) const {
  const bool reduces = request.kind == CollectiveKind::kAllreduce;
  const bool same = plan.kind == request.kind && plan.dtype == request.dtype &&
                    (!reduces || (plan.op == request.op && plan.prescale == request.prescale &&
                                  plan.postscale == request.postscale)) &&
                    (request.kind != CollectiveKind::kBroadcast || plan.root == request.root);
  if (!same) {
    return Internal(PlanName(plan) + " is not what rank " + std::to_string(rank_) +
                    " asked for under the name '" + item.name + "'");
  }
  return CheckFirstDims(item, request);
}

Status Participant::CheckFirstDims(const PlanItem& item, const Request& request) const {
  const std::vector<Rank>& members = *process_sets_->Find(request.process_set);
  const size_t tensors = request.kind == CollectiveKind::kAllgather ? request.shapes.size() : 0;
  const auto wrong = [&item] {
    return Internal("the plan for tensor '" + item.name + "' has wrong first dimensions");
  };
  if (item.first_dims.size() != tensors * members.size()) return wrong();
  if (tensors == 0) return OkStatus();
  const auto self = static_cast<size_t>(process_sets_->PositionOf(request.process_set, rank_));
  int64_t total = 0;
  for (size_t t = 0; t < tensors; ++t) {
    Shape rest = request.shapes[t];
    if (item.first_dims[t * members.size() + self] != rest[0]) return wrong();
    rest[0] = DataTypeSize(request.dtype);
    const int64_t row_bytes = NumElements(rest);
    for (size_t m = 0; m < members.size(); ++m) {
      const int64_t rows = item.first_dims[t * members.size() + m];
      int64_t bytes = 0;
      if (rows < 0 || (rows > 0 && row_bytes == INT64_MAX) ||
          __builtin_mul_overflow(rows, row_bytes, &bytes) ||
          __builtin_add_overflow(total, bytes, &total)) {
        return wrong();
      }
    }
  }
  return OkStatus();
}

}  // namespace tfring
