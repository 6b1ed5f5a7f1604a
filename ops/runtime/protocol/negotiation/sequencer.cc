#include "ops/runtime/protocol/negotiation/sequencer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ops/runtime/protocol/message/text.h"
#include "ops/runtime/protocol/negotiation/admission.h"
#include "ops/runtime/protocol/negotiation/negotiated_values.h"
#include "ops/runtime/protocol/negotiation/validation.h"

// From requests to complete tensors. Each tensor leaves this file in one of three ways: queued for
// a plan (ValidateAndQueue), ended with an error on all ranks that sent a request (EndDisagreement,
// EndWithAttempt, CancelFor), or, for a request that is not even recorded, ended on its own rank
// (RejectRequest).
namespace tfring {
namespace {

// Ranks that wait for each other for so long are reported.
constexpr Duration kCircleWarning = 3 * kSecond;
// Rank 0 keeps the texts of so many layouts; after that it drops them all.
constexpr size_t kMaxLayouts = 64;

}  // namespace

Sequencer::Sequencer(const Config& config, ProcessSets process_sets)
    : sets_(std::move(process_sets)),
      max_plans_in_flight_(static_cast<size_t>(std::max<int64_t>(1, config.max_plans_in_flight))),
      stall_shutdown_(config.stall_shutdown),
      check_call_sites_(config.call_site_check),
      max_pending_bytes_(static_cast<size_t>(config.max_pending_bytes)),
      cache_(config.cache_capacity),
      stalls_(config),
      circle_warning_(std::min(config.stall_warning, kCircleWarning)),
      throttled_(config),
      unthrottled_(config),
      locks_(config.lock_schedule && sets_.Find(kGlobalProcessSet)->size() > 1) {}

Status Sequencer::OnRequests(Rank from, std::vector<Request> requests,
                             const std::vector<uint32_t>& cache_ids, TimePoint now) {
  if (departed_.count(from) > 0) return OkStatus();  // it has cancelled its calls itself
  last_request_[from] = now;
  // What a rank requested before it joined has to count as requested before. Joins always come in
  // full, so ids go first; and a join waits for the requests that its rank was asked to resend.
  for (uint32_t id : cache_ids) TFRING_RETURN_IF_ERROR(OnCacheId(from, id, now));
  for (Request& request : requests) {
    const uint64_t made_at = attempts_.LeftCount(from);
    if (std::exchange(request.resent, false)) {
      TFRING_RETURN_IF_ERROR(OnResent(from, std::move(request), now));
    } else if (request.kind == CollectiveKind::kJoin && awaited_.count(from) > 0) {
      late_joins_[from].emplace_back(made_at, std::move(request));
    } else {
      TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(request), made_at, now));
    }
  }
  return OkStatus();
}

// One of the requests that `from` was asked to repeat. After the last it may join.
Status Sequencer::OnResent(Rank from, Request request, TimePoint now) {
  const auto awaited = awaited_.find(from);
  if (awaited == awaited_.end()) return Internal("it repeats a request that nobody asked for");
  TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(request), awaited->second.front(), now));
  awaited->second.pop_front();
  if (!awaited->second.empty()) return OkStatus();
  awaited_.erase(awaited);
  const auto late = late_joins_.find(from);
  if (late == late_joins_.end()) return OkStatus();
  auto joins = std::move(late->second);
  late_joins_.erase(late);
  for (auto& [made_at, join] : joins) {
    TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(join), made_at, now));
  }
  return OkStatus();
}

Status Sequencer::OnRequest(Rank from, Request request, uint64_t made_at, TimePoint now) {
  const ProcessSetId set = request.process_set;
  const std::vector<Rank>* members = sets_.Find(set);
  if (members == nullptr) {
    // The plan that removed the set was made while the request was on its way.
    const bool removed = set > kGlobalProcessSet && set < sets_.NextId();
    RejectRequest(from, request,
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
  if (RejectIfOver(from, request, made_at)) return OkStatus();
  if (!check_call_sites_) request.unnamed = false;
  RankRequest rank_request;
  rank_request.full = std::make_shared<const Request>(std::move(request));
  return RecordRequest(from, *members, std::move(rank_request), now);
}

Status Sequencer::OnCacheId(Rank from, uint32_t id, TimePoint now) {
  RankRequest rank_request;
  rank_request.cached = cache_.Find(id);
  if (rank_request.cached == nullptr) {
    if (!cache_.Issued(id)) return Internal("cache id " + std::to_string(id) + " was never issued");
    // Evicted, and `from` did not know that yet.
    resend_[from].push_back(id);
    awaited_[from].push_back(attempts_.LeftCount(from));
    return OkStatus();
  }
  const ProcessSetId set = rank_request.cached->request.process_set;
  if (!sets_.Contains(set, from)) {
    return Internal("cache id " + std::to_string(id) + " belongs to process set " +
                    std::to_string(set) + ", of which it is no member");
  }
  if (RejectIfOver(from, rank_request.common(), attempts_.LeftCount(from))) return OkStatus();
  return RecordRequest(from, *sets_.Find(set), std::move(rank_request), now);
}

Status Sequencer::RecordRequest(Rank from, const std::vector<Rank>& of_set,
                                RankRequest rank_request, TimePoint now) {
  const Request& request = rank_request.common();
  const ProcessSetId set = request.process_set;
  const std::string name = request.name;
  const bool joins = request.kind == CollectiveKind::kJoin && request.refusal.empty();
  if (joins_.Has(set, from)) {
    RejectRequest(
        from, request,
        FailedPrecondition(Describe(request) + SetText(set) + ": rank " + std::to_string(from) +
                           " has joined and takes no part until all have; wait for its "
                           "join to return first"));
    return OkStatus();
  }
  if (joins) {
    Status joined = joins_.Join(set, name, from);
    if (!joined.ok()) {
      RejectRequest(from, request, std::move(joined));
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
    EndWithAttempt(pending, std::move(room));
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
  const std::vector<Rank> departed = DepartedOf(pending->members);
  if (!departed.empty()) return CancelFor(departed, pending);
  std::vector<Rank> absent = joins_.AbsentFrom(*pending);
  Status possible = CheckAbsent(pending->AnyRequest(), absent);
  if (!possible.ok()) return EndDisagreement(pending, std::move(possible));
  if (pending->ready + absent.size() == pending->members.size()) {
    pending->absent = std::move(absent);
    return ValidateAndQueue(pending);
  }
  // A join that waits for ranks that still work is no stall.
  if (pending->watched || pending->AnyRequest().kind == CollectiveKind::kJoin) return;
  pending->watch = stalls_.Watch(pending->handle, now);
  pending->watched = true;
}

void Sequencer::ValidateAndQueue(PendingTensor* pending) {
  StopStallWatch(pending);
  Status agreed = Validate(pending);
  if (!agreed.ok()) return EndDisagreement(pending, std::move(agreed));
  pending->complete = true;
  pending->path = pending->CommonPath();
  // Until this tensor is planned, its name must not start another one on the same ranks; they do
  // not send it again before they have the plan. Other members may: those that are no end of a
  // send/recv, and absent ranks that come back.
  const bool of_two = pending->AnyRequest().kind == CollectiveKind::kSendRecv;
  if (of_two || !pending->absent.empty()) readiness_.ReleaseName(*pending);
  const bool with_rank_0 =
      pending->members.front() == 0 && (pending->absent.empty() || pending->absent.front() != 0);
  (with_rank_0 ? throttled_ : unthrottled_)
      .Add(pending->handle, pending->AnyRequest(), pending->absent, pending->path);
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

// Ends a request that was not recorded, on the rank that sent it.
void Sequencer::RejectRequest(Rank from, const Request& request, Status error, bool ends_attempt) {
  Addressed rejection{PlanFor(request), {from}};
  rejection.plan.error = std::move(error);
  rejection.plan.ends_attempt = ends_attempt;
  rejection.plan.items.push_back({request.name, 0, {}});
  errors_.push_back(std::move(rejection));
}

// In the order in which they left.
std::vector<Rank> Sequencer::DepartedOf(const std::vector<Rank>& members) const {
  std::vector<Rank> departed;
  for (Rank rank : departed_in_order_) {
    if (std::binary_search(members.begin(), members.end(), rank)) departed.push_back(rank);
  }
  return departed;
}

// Names the first of `departed`: others often leave because one rank did.
void Sequencer::CancelFor(std::vector<Rank> departed, PendingTensor* pending) {
  const Rank first = departed.front();
  const std::string& error = departed_.at(first);
  std::vector<Rank> after(departed.begin() + 1, departed.end());
  std::sort(after.begin(), after.end());
  std::sort(departed.begin(), departed.end());
  const std::string detail =
      " (" + Describe(*pending) + ", asked for by " + RanksText(pending->ReadyRanks()) + "). ";
  if (!error.empty()) {
    return EndWithError(pending,
                        Cancelled(error + ". Tensor '" + pending->name + "' was waiting for " +
                                  RanksText(departed) + detail + "See the log of rank " +
                                  std::to_string(first) + "; " + kWhatToDo));
  }
  std::string who = "rank " + std::to_string(first) + " has shut down";
  if (!after.empty()) who += ", after it " + RanksText(after) + ",";
  EndWithError(pending,
               Cancelled(who + " while tensor '" + pending->name + "' was waiting for " +
                         (after.empty() ? "it" : "them") + detail +
                         "Every rank has to run the same number of steps; do all have the same "
                         "amount of data?"));
}

// Sends the error to all ranks whose requests have come. The others never know of the tensor.
void Sequencer::EndWithError(PendingTensor* pending, Status error, bool ends_attempt) {
  StopStallWatch(pending);
  Addressed ending{PlanFor(pending->AnyRequest()), {}};
  for (size_t i = 0; i < pending->rank_requests.size(); ++i) {
    const RankRequest& rank_request = pending->rank_requests[i];
    const Rank rank = pending->members[i];
    if (rank_request.order == 0) continue;
    if (rank_request.common().kind == CollectiveKind::kJoin) {
      joins_.Leave(pending->process_set, rank);
    }
    if (departed_.count(rank) == 0) ending.recipients.push_back(rank);
  }
  ending.plan.error = std::move(error);
  ending.plan.ends_attempt = ends_attempt;
  ending.plan.items.push_back({pending->name, 0, {}});
  if (!ending.recipients.empty()) errors_.push_back(std::move(ending));
  readiness_.Erase(pending->handle);
}

void Sequencer::StopStallWatch(PendingTensor* pending) {
  if (pending->watched) stalls_.Forget(pending->watch);
  pending->watched = false;
}

void Sequencer::OnPlanDone(uint64_t sequence, bool failed) {
  in_flight_.erase(sequence);
  if (failed) detector_.OnOtherPlan();
}

void Sequencer::OnDeparted(Rank rank, const std::string& error) {
  if (!departed_.emplace(rank, error).second) return;
  departed_in_order_.push_back(rank);
  resend_.erase(rank);
  awaited_.erase(rank);
  late_joins_.erase(rank);
  std::vector<uint64_t> waiting;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (std::binary_search(pending.members.begin(), pending.members.end(), rank)) {
      waiting.push_back(handle);
    }
  }
  for (uint64_t handle : waiting) CancelFor({rank}, readiness_.Find(handle));
}

}  // namespace tfring
