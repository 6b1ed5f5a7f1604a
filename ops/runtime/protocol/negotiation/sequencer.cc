#include "ops/runtime/protocol/negotiation/sequencer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ops/runtime/protocol/negotiation/negotiated_values.h"
#include "ops/runtime/protocol/negotiation/validation.h"

namespace tfring {
namespace {

// Bounds the frame of one plan.
constexpr size_t kMaxNegotiatedValues = 1u << 20;
// More stall reports than this at one time hide each other.
constexpr size_t kMaxStallReports = 8;

std::string SetText(ProcessSetId set) {
  return set == kGlobalProcessSet ? "" : " in process set " + std::to_string(set);
}

std::string Describe(const Pending& pending) {
  return Describe(pending.AnyRequest()) + SetText(pending.process_set);
}

// The agreement by whose id every member asked, or null.
const Agreement* CommonAgreement(const Pending& pending) {
  const Agreement* common = pending.rank_requests.front().cached.get();
  for (const RankRequest& rank_request : pending.rank_requests) {
    if (rank_request.cached.get() != common) return nullptr;
  }
  return common;
}

// A plan's share of what was agreed on; fields that the kind does not use keep their defaults.
Plan PlanFor(const Request& request) {
  Plan plan;
  plan.process_set = request.process_set;
  plan.kind = request.kind;
  plan.dtype = request.dtype;
  if (Reduces(request.kind)) {
    plan.op = request.op;
    plan.prescale = request.prescale;
    plan.postscale = request.postscale;
  }
  if (HasRoot(request.kind)) plan.root = request.root;
  if (request.kind == CollectiveKind::kSendRecv) plan.peer = request.peer;
  return plan;
}

}  // namespace

Sequencer::Sequencer(const Config& config, ProcessSets process_sets)
    : sets_(std::move(process_sets)),
      max_in_flight_(static_cast<size_t>(std::max<int64_t>(1, config.max_plans_in_flight))),
      stall_shutdown_(config.stall_shutdown),
      cache_(config.cache_capacity),
      stalls_(config),
      throttled_(config),
      unthrottled_(config) {}

Status Sequencer::OnRequests(Rank from, std::vector<Request> requests,
                             const std::vector<uint32_t>& cache_ids, TimePoint now) {
  if (departed_.count(from) > 0) return OkStatus();  // it waits for nothing any more
  // Ids first: a join, which goes in full, must not overtake what was asked for before it.
  for (uint32_t id : cache_ids) TFRING_RETURN_IF_ERROR(OnCacheId(from, id, now));
  for (Request& request : requests) {
    const bool resent = std::exchange(request.resent, false);
    if (request.kind == CollectiveKind::kJoin && awaited_.count(from) > 0) {
      late_joins_[from].push_back(std::move(request));
      continue;
    }
    // No request that had a cache id is a refusal: this call has ended meanwhile.
    const bool over = resent && !request.refusal.empty();
    if (!over) TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(request), now));
    if (resent) TFRING_RETURN_IF_ERROR(OnResent(from, now));
  }
  return OkStatus();
}

// One of the requests that `from` was asked to repeat has come: after the last of them, the joins.
Status Sequencer::OnResent(Rank from, TimePoint now) {
  const auto awaited = awaited_.find(from);
  if (awaited == awaited_.end()) return Internal("it repeats a request that nobody asked for");
  if (--awaited->second > 0) return OkStatus();
  awaited_.erase(awaited);
  const auto late = late_joins_.find(from);
  if (late == late_joins_.end()) return OkStatus();
  std::vector<Request> joins = std::move(late->second);
  late_joins_.erase(late);
  for (Request& join : joins) TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(join), now));
  return OkStatus();
}

Status Sequencer::OnRequest(Rank from, Request request, TimePoint now) {
  const ProcessSetId set = request.process_set;
  const std::vector<Rank>* members = sets_.Find(set);
  if (members == nullptr) {
    Reject(from, request,
           InvalidArgument(Describe(request) + " names process set " + std::to_string(set) +
                           ", which does not exist on rank 0; add it on every rank before its use, "
                           "and do not use it after its removal"));
    return OkStatus();
  }
  if (sets_.PositionOf(set, from) < 0) {
    return Internal(Describe(request) + " came from a rank that is no member of process set " +
                    std::to_string(set));
  }
  const Status checked = request.refusal.empty() ? CheckRequest(request, *members, from)
                                                 : CheckRouting(request, *members, from);
  if (!checked.ok()) return Internal("an impossible request: " + checked.message());
  std::vector<Rank> two;
  if (request.kind == CollectiveKind::kSendRecv) {
    two = ParticipantsOf(request, *members);
    members = &two;
  }
  RankRequest rank_request;
  rank_request.full = std::make_unique<Request>(std::move(request));
  return Record(from, *members, std::move(rank_request), now);
}

Status Sequencer::OnCacheId(Rank from, uint32_t id, TimePoint now) {
  RankRequest rank_request;
  rank_request.cached = cache_.Find(id);
  if (rank_request.cached == nullptr) {
    if (!cache_.Issued(id)) return Internal("cache id " + std::to_string(id) + " was never issued");
    resend_[from].push_back(id);
    ++awaited_[from];
    return OkStatus();
  }
  const Request& request = rank_request.cached->request;
  const std::vector<Rank>* members = sets_.Find(request.process_set);
  if (members == nullptr || sets_.PositionOf(request.process_set, from) < 0) {
    return Internal("cache id " + std::to_string(id) + " belongs to process set " +
                    std::to_string(request.process_set) + ", of which it is no member");
  }
  return Record(from, *members, std::move(rank_request), now);
}

Status Sequencer::Record(Rank from, const std::vector<Rank>& members, RankRequest rank_request,
                         TimePoint now) {
  const Request& request = rank_request.common();
  const ProcessSetId set = request.process_set;
  const std::string name = request.name;
  const bool joins = request.kind == CollectiveKind::kJoin && request.refusal.empty();
  if (joins_.Has(set, from)) {
    Reject(from, request,
           FailedPrecondition(Describe(request) + SetText(set) + ": rank " + std::to_string(from) +
                              " has joined and takes no part until all have; wait for its join to "
                              "return first"));
    return OkStatus();
  }
  if (joins) {
    Status joined = joins_.Join(set, name, from);
    if (!joined.ok()) {
      Reject(from, request, std::move(joined));
      return OkStatus();
    }
  }
  Pending* pending = readiness_.Add(set, name, members, from, std::move(rank_request), now);
  if (pending == nullptr) {
    return Internal("rank " + std::to_string(from) + " asked twice for tensor '" + name + "'" +
                    SetText(set) + " before it was planned");
  }
  if (joins) {
    SettleWithout(from, now);
  } else {
    TryComplete(pending, now);
  }
  return OkStatus();
}

// `rank` has joined: what the others wait for may be complete, or impossible. Joins come last: the
// plan that makes a set whole again must not overtake those that go without the rank.
void Sequencer::SettleWithout(Rank rank, TimePoint now) {
  std::vector<uint64_t> waiting;
  std::vector<uint64_t> joins;
  for (const auto& [handle, pending] : readiness_.all()) {
    const std::vector<Rank>& members = pending.members;
    if (pending.complete || !std::binary_search(members.begin(), members.end(), rank)) continue;
    const bool is_join = pending.AnyRequest().kind == CollectiveKind::kJoin;
    (is_join ? joins : waiting).push_back(handle);
  }
  waiting.insert(waiting.end(), joins.begin(), joins.end());
  for (uint64_t handle : waiting) TryComplete(readiness_.Find(handle), now);
}

// Ends the request, plans it, or sees to it that nobody waits for it unheard.
void Sequencer::TryComplete(Pending* pending, TimePoint now) {
  const std::vector<Rank> departed = DepartedOf(pending->members);
  if (!departed.empty()) return Cancel(pending, departed);
  std::vector<Rank> absent = joins_.AbsentFrom(*pending);
  Status possible = CheckAbsent(pending->AnyRequest(), absent);
  if (!possible.ok()) return End(pending, std::move(possible));
  if (pending->asked + absent.size() == pending->members.size()) {
    pending->absent = std::move(absent);
    return Complete(pending);
  }
  // That some have joined and others work on is no stall.
  if (pending->watched || pending->AnyRequest().kind == CollectiveKind::kJoin) return;
  pending->watch = stalls_.Watch(pending->handle, now);
  pending->watched = true;
}

void Sequencer::Complete(Pending* pending) {
  Unwatch(pending);
  Status agreed = Validate(pending);
  if (!agreed.ok()) return End(pending, std::move(agreed));
  pending->complete = true;
  // An absent rank may come back, and ask, before the plan of the others is stamped; and
  // those who have no part in a send may use its name.
  const bool of_two = pending->AnyRequest().kind == CollectiveKind::kSendRecv;
  if (of_two || !pending->absent.empty()) readiness_.ReleaseName(*pending);
  const bool with_us =
      pending->members.front() == 0 && (pending->absent.empty() || pending->absent.front() != 0);
  (with_us ? throttled_ : unthrottled_)
      .Add(pending->handle, pending->AnyRequest(), pending->absent);
}

// Checks that those who asked agree, and notes the first dimensions that follow.
Status Sequencer::Validate(Pending* pending) {
  if (CommonAgreement(*pending) != nullptr) return OkStatus();
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
  const std::vector<Rank> participants = pending->AskedBy();
  TFRING_RETURN_IF_ERROR(ValidateAgreement(participants, requests));
  if (NegotiatedValuesCount(*requests[0], participants.size()) > kMaxNegotiatedValues) {
    return InvalidArgument(Describe(*pending) + ": too many tensors for one call on " +
                           std::to_string(requests.size()) + " ranks; split the list");
  }
  pending->negotiated_values = NegotiatedValuesOf(participants, requests);
  if (!NegotiatedValuesCountable(pending->negotiated_values, participants.size(), *requests[0])) {
    return InvalidArgument(Describe(*pending) + ": the tensors of ranks " +
                           RanksString(participants) +
                           " together hold more rows or bytes than can be counted; split them");
  }
  return OkStatus();
}

// Ends a request that is not even pending.
void Sequencer::Reject(Rank from, const Request& request, Status error) {
  Stamped stamped{PlanFor(request), {from}};
  stamped.plan.error = std::move(error);
  stamped.plan.items.push_back({request.name, 0, {}});
  errors_.push_back(std::move(stamped));
}

std::vector<Rank> Sequencer::DepartedOf(const std::vector<Rank>& members) const {
  std::vector<Rank> departed;
  for (Rank rank : departed_) {
    if (std::binary_search(members.begin(), members.end(), rank)) departed.push_back(rank);
  }
  return departed;
}

void Sequencer::Cancel(Pending* pending, const std::vector<Rank>& departed) {
  const std::vector<Rank> asked_by = pending->AskedBy();
  std::string text = departed.size() == 1 ? "rank " : "ranks ";
  text += RanksString(departed) + (departed.size() == 1 ? " has" : " have") + " shut down while ";
  text +=
      "tensor '" + pending->name + "' was waiting for " + (departed.size() == 1 ? "it" : "them");
  text += " (" + Describe(*pending) + ", asked for by ";
  text += (asked_by.size() == 1 ? "rank " : "ranks ") + RanksString(asked_by);
  text += "). Every rank has to run the same number of steps; do all have the same amount of data?";
  End(pending, Cancelled(std::move(text)));
}

// All who asked get the error.
void Sequencer::End(Pending* pending, Status error) {
  Unwatch(pending);
  Stamped stamped{PlanFor(pending->AnyRequest()), {}};
  for (size_t i = 0; i < pending->rank_requests.size(); ++i) {
    const RankRequest& rank_request = pending->rank_requests[i];
    const Rank rank = pending->members[i];
    if (rank_request.order == 0) continue;
    if (rank_request.common().kind == CollectiveKind::kJoin)
      joins_.Leave(pending->process_set, rank);
    if (departed_.count(rank) == 0) stamped.recipients.push_back(rank);
  }
  stamped.plan.error = std::move(error);
  stamped.plan.items.push_back({pending->name, 0, {}});
  if (!stamped.recipients.empty()) errors_.push_back(std::move(stamped));
  readiness_.Erase(pending->handle);
}

void Sequencer::Unwatch(Pending* pending) {
  if (pending->watched) stalls_.Forget(pending->watch);
  pending->watched = false;
}

void Sequencer::OnPlanDone(uint64_t sequence) { in_flight_.erase(sequence); }

void Sequencer::OnDeparted(Rank rank) {
  if (!departed_.insert(rank).second) return;
  resend_.erase(rank);
  awaited_.erase(rank);
  late_joins_.erase(rank);
  std::vector<uint64_t> waiting;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (std::binary_search(pending.members.begin(), pending.members.end(), rank)) {
      waiting.push_back(handle);
    }
  }
  for (uint64_t handle : waiting) Cancel(readiness_.Find(handle), {rank});
}

Sequencer::Outgoing Sequencer::Take() {
  Outgoing out;
  out.resend = std::move(resend_);
  resend_.clear();
  // A plan that removes a process set leaves errors behind.
  do {
    for (Stamped& stamped : std::exchange(errors_, {})) {
      stamped.plan.sequence = ++last_sequence_;
      out.plans.push_back(std::move(stamped));
    }
    while (StampNext(&unthrottled_, &out)) {
    }
    while (in_flight_.size() < max_in_flight_ && StampNext(&throttled_, &out)) {
    }
  } while (!errors_.empty());
  return out;
}

// Stamps the next batch of `planner`; false if there is none.
bool Sequencer::StampNext(FusionPlanner* planner, Outgoing* out) {
  while (!planner->empty()) {
    Stamped stamped;
    for (uint64_t handle : planner->Take()) {
      const Pending* pending = readiness_.Find(handle);
      if (pending == nullptr) continue;  // cancelled meanwhile
      if (stamped.plan.items.empty()) {
        stamped.plan = PlanFor(pending->AnyRequest());
        stamped.plan.absent = pending->absent;
        stamped.recipients = pending->AskedBy();
      }
      AddItem(*pending, &stamped.plan);
      readiness_.Erase(handle);
    }
    if (stamped.plan.items.empty()) continue;
    Plan& plan = stamped.plan;
    plan.sequence = ++last_sequence_;
    // Evictions are told to all members at once.
    const auto evicted = evicted_.find(plan.process_set);
    if (evicted != evicted_.end() && plan.absent.empty() &&
        plan.kind != CollectiveKind::kSendRecv) {
      plan.evicted = std::move(evicted->second);
      evicted_.erase(evicted);
    }
    const bool runs_here = stamped.recipients.front() == 0 && MovesData(plan.kind);
    if (runs_here) in_flight_.insert(plan.sequence);
    out->plans.push_back(std::move(stamped));
    return true;
  }
  return false;
}

void Sequencer::AddItem(const Pending& pending, Plan* plan) {
  if (!MovesData(plan->kind)) return AddValues(pending, plan);
  PlanItem item;
  const Agreement* agreement = CommonAgreement(pending);
  if (agreement != nullptr && cache_.Find(agreement->id) != nullptr) {
    item.cache_id = agreement->id;
    cache_.Touch(agreement->id);
    plan->items.push_back(std::move(item));
    return;
  }
  item.name = pending.name;
  item.negotiated_values =
      agreement != nullptr ? agreement->negotiated_values : pending.negotiated_values;
  if (Cacheable(plan->kind) && pending.absent.empty()) {
    ResponseCache::Evicted evicted;
    item.cache_id =
        cache_.Insert(pending.rank_requests.front().common(), item.negotiated_values, &evicted);
    for (const auto& [set, id] : evicted) evicted_[set].push_back(id);
  }
  plan->items.push_back(std::move(item));
}

// Of a plan that moves no data. It takes effect here and now, and everywhere when it arrives.
void Sequencer::AddValues(const Pending& pending, Plan* plan) {
  PlanItem item;
  item.name = pending.name;
  const Request& request = pending.AnyRequest();
  if (plan->kind == CollectiveKind::kJoin) {
    item.negotiated_values = {pending.LastToAsk()};
    joins_.Clear(pending.process_set);
  } else if (plan->kind == CollectiveKind::kAddProcessSet) {
    plan->error = AddSet(request, &item.negotiated_values);
  } else {
    plan->error = RemoveSet(request, &item.negotiated_values);
  }
  plan->items.push_back(std::move(item));
}

Status Sequencer::AddSet(const Request& request, std::vector<int64_t>* values) {
  const std::vector<Rank> ranks(request.splits.begin(), request.splits.end());
  const ProcessSetId equal = sets_.FindEqual(ranks);
  if (equal >= 0) {
    return InvalidArgument(Describe(request) + ": a process set of the ranks " +
                           RanksString(ranks) + " is registered already, with id " +
                           std::to_string(equal) + "; use that one");
  }
  const ProcessSetId id = sets_.NextId();
  TFRING_RETURN_IF_ERROR(sets_.Add(id, ranks));
  values->push_back(id);
  values->insert(values->end(), request.splits.begin(), request.splits.end());
  return OkStatus();
}

Status Sequencer::RemoveSet(const Request& request, std::vector<int64_t>* values) {
  const auto id = static_cast<ProcessSetId>(request.splits[0]);
  const Status removed = sets_.Remove(id);
  if (!removed.ok()) return InvalidArgument(Describe(request) + ": " + removed.message());
  cache_.DropSet(id);
  evicted_.erase(id);
  std::vector<uint64_t> left;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (pending.process_set == id) left.push_back(handle);
  }
  for (uint64_t handle : left) {
    Pending* pending = readiness_.Find(handle);
    End(pending, FailedPrecondition(Describe(*pending) + ": the process set was removed before " +
                                    "all its ranks had asked for it; remove a process set when " +
                                    "all its collectives have ended"));
  }
  *values = request.splits;
  return OkStatus();
}

Status Sequencer::OnTime(TimePoint now, std::vector<std::string>* warnings) {
  if (const uint64_t* handle = stalls_.Expired(now)) {
    return DeadlineExceeded(StallReport(*readiness_.Find(*handle), now, OldestWaits()) +
                            " The limit of " + std::to_string(stall_shutdown_ / kSecond) +
                            " s (TFRING_STALL_SHUTDOWN_TIME_SECONDS) has passed.");
  }
  const std::vector<uint64_t> due = stalls_.TakeWarnings(now);
  if (due.empty()) return OkStatus();
  const std::map<Rank, const Pending*> waits = OldestWaits();
  for (size_t i = 0; i < due.size() && i < kMaxStallReports; ++i) {
    warnings->push_back(StallReport(*readiness_.Find(due[i]), now, waits));
  }
  if (due.size() > kMaxStallReports) {
    warnings->push_back(std::to_string(due.size() - kMaxStallReports) +
                        " more tensors have stalled as well, the last of them " +
                        Describe(*readiness_.Find(due.back())));
  }
  return OkStatus();
}

// What each rank has asked for first and not got, because others are missing.
std::map<Rank, const Pending*> Sequencer::OldestWaits() const {
  std::map<Rank, std::pair<uint64_t, const Pending*>> oldest;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (pending.complete) continue;
    for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
      const uint64_t order = pending.rank_requests[i].order;
      if (order == 0) continue;
      const auto [it, added] = oldest.try_emplace(pending.members[i], order, &pending);
      if (!added && order < it->second.first) it->second = {order, &pending};
    }
  }
  std::map<Rank, const Pending*> waits;
  for (const auto& [rank, wait] : oldest) waits[rank] = wait.second;
  return waits;
}

std::string Sequencer::StallReport(const Pending& pending, TimePoint now,
                                   const std::map<Rank, const Pending*>& waits) const {
  std::vector<StallView> views;
  for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
    StallView view;
    view.rank = pending.members[i];
    view.ready = pending.rank_requests[i].order != 0;
    view.joined = joins_.Has(pending.process_set, view.rank);
    const auto wait = waits.find(view.rank);
    if (!view.ready && wait != waits.end()) view.waits_for = Describe(*wait->second);
    views.push_back(std::move(view));
  }
  return StallMessage(Describe(pending), now - pending.since, views);
}

}  // namespace tfring
