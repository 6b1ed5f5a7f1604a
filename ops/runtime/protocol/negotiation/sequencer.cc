#include "ops/runtime/protocol/negotiation/sequencer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ops/runtime/protocol/message/text.h"
#include "ops/runtime/protocol/negotiation/negotiated_values.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/validation.h"

namespace tfring {
namespace {

// Rank 0 keeps the texts of this many layouts. After that it drops them all.
constexpr size_t kMaxLayouts = 64;

}  // namespace

Sequencer::Sequencer(const Config& config, ProcessSets process_sets)
    : check_call_sites_(config.call_site_check),
      max_pending_bytes_(static_cast<size_t>(config.max_pending_bytes)),
      sets_(std::move(process_sets)),
      stalls_(config, &readiness_, &joins_),
      failures_(&sets_, &readiness_, &joins_, &stalls_),
      planner_(config, &sets_, &readiness_, &joins_, &failures_) {}

Status Sequencer::OnRequests(Rank from, std::vector<Request> requests,
                             const std::vector<uint32_t>& cache_ids, TimePoint now) {
  if (failures_.departed(from)) return OkStatus();  // it has cancelled its calls itself
  stalls_.OnRequest(from, now);
  // What a rank requested before it joined has to count as requested before. Joins always come in
  // full, so ids go first.
  for (uint32_t id : cache_ids) TFRING_RETURN_IF_ERROR(OnCacheId(from, id, now));
  for (Request& request : requests) {
    TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(request), now));
  }
  return OkStatus();
}

Status Sequencer::OnRequest(Rank from, Request request, TimePoint now) {
  const ProcessSetId set = request.process_set;
  const std::vector<Rank>* members = sets_.Find(set);
  if (members == nullptr) {
    // The plan that removed the set was made while the request was on its way.
    const bool removed = set > kGlobalProcessSet && set < sets_.NextId();
    failures_.Reject(from, request,
                     removed ? SetWasRemoved(request)
                             : InvalidArgument(Describe(request) + ": " + NoSuchSet(set)));
    return OkStatus();
  }
  if (!sets_.Contains(set, from)) {
    return Internal(Describe(request) + " came from a rank that is no member of process set " +
                    std::to_string(set));
  }
  const Status checked = CheckRequest(request, *members, from);
  if (!checked.ok()) return Internal("an impossible request: " + checked.message());
  if (!request.layout.empty()) {
    if (layouts_.size() >= kMaxLayouts) layouts_.clear();
    layouts_.emplace(request.layout_hash, std::exchange(request.layout, ""));
  }
  if (failures_.RejectIfOver(from, request)) return OkStatus();
  if (!check_call_sites_) request.unnamed = false;
  RankRequest rank_request;
  rank_request.full = std::make_shared<const Request>(std::move(request));
  return RecordRequest(from, *members, std::move(rank_request), now);
}

Status Sequencer::OnCacheId(Rank from, uint32_t id, TimePoint now) {
  RankRequest rank_request;
  rank_request.cached = planner_.Find(id);
  if (rank_request.cached == nullptr) {
    return Internal("cache id " + std::to_string(id) + " stands for no request");
  }
  const Request& request = rank_request.common();
  const ProcessSetId set = request.process_set;
  if (sets_.Find(set) == nullptr) {
    // The plan that removed the set was made while the id was on its way.
    failures_.Reject(from, request, SetWasRemoved(request));
    return OkStatus();
  }
  if (!sets_.Contains(set, from)) {
    return Internal("cache id " + std::to_string(id) + " belongs to process set " +
                    std::to_string(set) + ", of which it is no member");
  }
  if (failures_.RejectIfOver(from, request)) return OkStatus();
  return RecordRequest(from, *sets_.Find(set), std::move(rank_request), now);
}

Status Sequencer::RecordRequest(Rank from, const std::vector<Rank>& of_set,
                                RankRequest rank_request, TimePoint now) {
  const Request& request = rank_request.common();
  const ProcessSetId set = request.process_set;
  const std::string name = request.name;
  const bool joins = request.kind == CollectiveKind::kJoin && request.refusal.empty();
  if (joins_.Has(set, from)) {
    failures_.Reject(
        from, request,
        FailedPrecondition(Describe(request) + SetText(set) + ": rank " + std::to_string(from) +
                           " has joined and takes no part until all have; wait for its "
                           "join to return first"));
    return OkStatus();
  }
  if (joins) {
    Status joined = joins_.Join(set, name, from);
    if (!joined.ok()) {
      failures_.Reject(from, request, std::move(joined));
      return OkStatus();
    }
  }
  Status room = joins ? OkStatus() : CheckRoomFor(from, request);
  PendingTensor* pending = readiness_.Add(set, name, of_set, from, std::move(rank_request));
  if (pending == nullptr) {
    return Internal("rank " + std::to_string(from) + " asked twice for tensor '" + name + "'" +
                    SetText(set) + " before it was planned");
  }
  pending->asked.Add(from, now);
  if (!room.ok()) {
    failures_.EndWithAttempt(pending, std::move(room));
  } else if (joins) {
    CompleteWithout(from, now);
  } else {
    TryComplete(pending, now);
  }
  return OkStatus();
}

// Not ok if the memory for requests that wait for other ranks is used up. A request that completes
// its tensor is always taken.
Status Sequencer::CheckRoomFor(Rank from, const Request& request) {
  if (readiness_.bytes() < max_pending_bytes_) return OkStatus();
  const PendingTensor* pending = readiness_.FindByName(request.process_set, request.name);
  if (pending != nullptr && pending->ready + 1 >= pending->members.size()) return OkStatus();
  return ResourceExhausted(
      Describe(request) + SetText(request.process_set) + " by rank " + std::to_string(from) +
      ": rank 0 keeps " + std::to_string(readiness_.all().size()) +
      " tensors that wait for other ranks, in " + std::to_string(readiness_.bytes()) +
      " bytes, and TFRING_MAX_PENDING_BYTES is " + std::to_string(max_pending_bytes_) +
      ". Wait for some calls before making more, give many small tensors to one grouped call, or "
      "look for the rank that the others are ahead of");
}

// After `joined` has joined: tensors that waited for it may be complete now, or impossible. Joins
// are completed last, because the plan of a join brings all ranks back: tensors that complete
// without them have to be planned before it.
void Sequencer::CompleteWithout(Rank joined, TimePoint now) {
  std::vector<uint64_t> tensors;
  std::vector<uint64_t> joins;
  for (const auto& [handle, pending] : readiness_.all()) {
    const std::vector<Rank>& members = pending.members;
    if (pending.complete || !std::binary_search(members.begin(), members.end(), joined)) continue;
    const bool is_join = pending.AnyRequest().kind == CollectiveKind::kJoin;
    (is_join ? joins : tensors).push_back(handle);
  }
  tensors.insert(tensors.end(), joins.begin(), joins.end());
  for (uint64_t handle : tensors) {
    PendingTensor* pending = readiness_.Find(handle);
    if (pending != nullptr) TryComplete(pending, now);  // unless one before ended the attempt
  }
}

// Called after each change that can complete a tensor. If a member is still missing, it is watched
// for a stall: every tensor either leaves this state or is reported sooner or later.
void Sequencer::TryComplete(PendingTensor* pending, TimePoint now) {
  if (failures_.EndIfDeparted(pending)) return;
  std::vector<Rank> absent = joins_.AbsentFrom(*pending);
  Status possible = CheckAbsent(pending->AnyRequest(), absent);
  if (!possible.ok()) return failures_.EndDisagreement(pending, std::move(possible));
  if (pending->ready + absent.size() == pending->members.size()) {
    pending->absent = std::move(absent);
    return ValidateAndQueue(pending);
  }
  // A join that waits for ranks that still work is no stall.
  if (pending->AnyRequest().kind != CollectiveKind::kJoin) stalls_.Watch(pending, now);
}

void Sequencer::ValidateAndQueue(PendingTensor* pending) {
  stalls_.Forget(pending);
  Status agreed = Validate(pending);
  if (!agreed.ok()) return failures_.EndDisagreement(pending, std::move(agreed));
  pending->complete = true;
  pending->path = pending->CommonPath();
  // Until this tensor is planned, its name must not start another one on the same ranks; they do
  // not send it again before they have the plan. Other members may: those that are no end of a
  // send/recv, and absent ranks that come back.
  const bool of_two = pending->AnyRequest().kind == CollectiveKind::kSendRecv;
  if (of_two || !pending->absent.empty()) readiness_.ReleaseName(*pending);
  planner_.Queue(*pending);
}

// Checks that the requests agree, and computes the values that no rank knows alone.
Status Sequencer::Validate(PendingTensor* pending) const {
  if (pending->CommonAgreement() != nullptr) return OkStatus();  // valid the first time, so again
  std::vector<std::unique_ptr<Request>> expanded;
  std::vector<const Request*> requests;
  for (size_t i = 0; i < pending->rank_requests.size(); ++i) {
    const RankRequest& rank_request = pending->rank_requests[i];
    if (rank_request.order == 0) continue;
    if (rank_request.cached) {
      expanded.push_back(
          std::make_unique<Request>(rank_request.cached->RequestOf(static_cast<int>(i))));
    }
    requests.push_back(rank_request.cached ? expanded.back().get() : rank_request.full.get());
  }
  const std::vector<Rank> ranks = pending->ReadyRanks();
  TFRING_RETURN_IF_ERROR(ValidateAgreement(ranks, requests, layouts_));
  pending->negotiated_values = NegotiatedValuesOf(ranks, requests);
  return ValidateValues(ranks, pending->negotiated_values, *requests[0]);
}

Sequencer::Outgoing Sequencer::Take() {
  Outgoing out;
  out.plans = planner_.Take();
  if (planner_.may_lock() && Quiet()) out.lock = planner_.MakeLock();
  return out;
}

// Nothing waits, and the next requests of every rank are its first after the last plan.
bool Sequencer::Quiet() const {
  if (!readiness_.all().empty() || !failures_.empty() || !joins_.empty() ||
      !failures_.none_departed()) {
    return false;
  }
  const std::vector<Rank>& ranks = *sets_.Find(kGlobalProcessSet);
  return std::all_of(ranks.begin(), ranks.end(), [this](Rank rank) {
    return failures_.attempts().WhyOver(kGlobalProcessSet, rank) == nullptr;
  });
}

Status Sequencer::OnUnlock(const LockMessage& unlock, const LockCoordinator& ranks, TimePoint now) {
  planner_.OnUnlock(unlock);
  for (Rank rank : *sets_.Find(kGlobalProcessSet)) {
    for (uint64_t number = unlock.entered; number < ranks.entered(rank); ++number) {
      TFRING_RETURN_IF_ERROR(OnRequests(rank, {}, ranks.batch(number), now));
    }
  }
  return OkStatus();
}

}  // namespace tfring
