#include "ops/runtime/core/sequencer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ops/runtime/core/validation.h"

namespace tfring {
namespace {

// Bounds the frame of one plan.
constexpr size_t kMaxFirstDims = 1u << 20;
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
  const Agreement* common = pending.asks.front().cached.get();
  for (const Ask& ask : pending.asks) {
    if (ask.cached.get() != common) return nullptr;
  }
  return common;
}

std::vector<int64_t> FirstDims(const Pending& pending) {
  const Request& first = pending.asks.front().common();
  if (first.kind != CollectiveKind::kAllgather) return {};
  const size_t members = pending.asks.size();
  std::vector<int64_t> dims(first.shapes.size() * members);
  for (size_t m = 0; m < members; ++m) {
    const Ask& ask = pending.asks[m];
    for (size_t t = 0; t < first.shapes.size(); ++t) {
      dims[t * members + m] =
          ask.full ? ask.full->shapes[t][0] : ask.cached->first_dims[t * members + m];
    }
  }
  return dims;
}

// A plan's share of what was agreed on; fields that the kind does not use keep their defaults.
Plan PlanFor(const Request& request) {
  Plan plan;
  plan.process_set = request.process_set;
  plan.kind = request.kind;
  plan.dtype = request.dtype;
  if (request.kind == CollectiveKind::kAllreduce) {
    plan.op = request.op;
    plan.prescale = request.prescale;
    plan.postscale = request.postscale;
  }
  if (request.kind == CollectiveKind::kBroadcast) plan.root = request.root;
  return plan;
}

}  // namespace

Sequencer::Sequencer(const Config& config, const ProcessSets* process_sets)
    : process_sets_(process_sets),
      max_in_flight_(static_cast<size_t>(std::max<int64_t>(1, config.max_plans_in_flight))),
      stall_shutdown_(config.stall_shutdown),
      cache_(config.cache_capacity),
      stalls_(config),
      windowed_(config),
      free_(config) {}

Status Sequencer::OnRequests(Rank from, std::vector<Request> requests,
                             const std::vector<uint32_t>& cache_ids, TimePoint now) {
  if (departed_.count(from) > 0) return OkStatus();  // it waits for nothing any more
  for (Request& request : requests) {
    TFRING_RETURN_IF_ERROR(OnRequest(from, std::move(request), now));
  }
  for (uint32_t id : cache_ids) TFRING_RETURN_IF_ERROR(OnCacheId(from, id, now));
  return OkStatus();
}

Status Sequencer::OnRequest(Rank from, Request request, TimePoint now) {
  const ProcessSetId set = request.process_set;
  const std::vector<Rank>* members = process_sets_->Find(set);
  if (members == nullptr) {
    Stamped stamped{PlanFor(request), {from}};
    stamped.plan.error =
        InvalidArgument(Describe(request) + " names process set " + std::to_string(set) +
                        ", which does not exist on rank 0; add it on every rank before its use");
    stamped.plan.items.push_back({request.name, 0, {}});
    errors_.push_back(std::move(stamped));
    return OkStatus();
  }
  const int position = process_sets_->PositionOf(set, from);
  if (position < 0) {
    return Internal(Describe(request) + " came from a rank that is no member of process set " +
                    std::to_string(set));
  }
  const Status checked = CheckRequest(request, *members);
  if (!checked.ok()) return Internal("an impossible request: " + checked.message());
  const std::string name = request.name;
  Ask ask;
  ask.full = std::make_unique<Request>(std::move(request));
  return Note(from, set, name, *members, position, std::move(ask), now);
}

Status Sequencer::OnCacheId(Rank from, uint32_t id, TimePoint now) {
  Ask ask;
  ask.cached = cache_.Find(id);
  if (ask.cached == nullptr) {
    if (!cache_.Issued(id)) return Internal("cache id " + std::to_string(id) + " was never issued");
    resend_[from].push_back(id);
    return OkStatus();
  }
  const Request& request = ask.cached->request;
  const std::vector<Rank>* members = process_sets_->Find(request.process_set);
  const int position = process_sets_->PositionOf(request.process_set, from);
  if (members == nullptr || position < 0) {
    return Internal("cache id " + std::to_string(id) + " belongs to process set " +
                    std::to_string(request.process_set) + ", of which it is no member");
  }
  return Note(from, request.process_set, request.name, *members, position, std::move(ask), now);
}

Status Sequencer::Note(Rank from, ProcessSetId set, const std::string& name,
                       const std::vector<Rank>& members, int position, Ask ask, TimePoint now) {
  Pending* pending = readiness_.Add(set, name, members, position, std::move(ask), now);
  if (pending == nullptr) {
    return Internal("rank " + std::to_string(from) + " asked twice for tensor '" + name + "'" +
                    SetText(set) + " before it was planned");
  }
  const std::vector<Rank> departed = DepartedOf(members);
  if (!departed.empty()) {
    Cancel(pending, departed);
  } else if (pending->complete()) {
    Complete(pending);
  } else if (!pending->watched) {
    pending->watch = stalls_.Watch(pending->handle, now);
    pending->watched = true;
  }
  return OkStatus();
}

void Sequencer::Complete(Pending* pending) {
  Unwatch(pending);
  const Status agreed = Validate(*pending);
  if (!agreed.ok()) {
    End(pending, agreed, pending->members);
    return;
  }
  FusionPlanner& planner = pending->members.front() == 0 ? windowed_ : free_;
  planner.Add(pending->handle, pending->asks.front().common());
}

Status Sequencer::Validate(const Pending& pending) const {
  if (CommonAgreement(pending) != nullptr) return OkStatus();
  std::vector<std::unique_ptr<Request>> expanded;
  std::vector<const Request*> requests;
  for (size_t i = 0; i < pending.asks.size(); ++i) {
    const Ask& ask = pending.asks[i];
    if (ask.cached) {
      expanded.push_back(std::make_unique<Request>(ask.cached->RequestOf(static_cast<int>(i))));
    }
    requests.push_back(ask.cached ? expanded.back().get() : ask.full.get());
  }
  TFRING_RETURN_IF_ERROR(ValidateAgreement(pending.members, requests));
  if (requests[0]->kind == CollectiveKind::kAllgather &&
      requests[0]->shapes.size() * requests.size() > kMaxFirstDims) {
    return InvalidArgument(Describe(pending) + ": too many tensors for one call on " +
                           std::to_string(requests.size()) + " ranks; split the list");
  }
  return OkStatus();
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
  End(pending, Cancelled(std::move(text)), asked_by);
}

void Sequencer::End(Pending* pending, Status error, const std::vector<Rank>& recipients) {
  Unwatch(pending);
  Stamped stamped{PlanFor(pending->AnyRequest()), {}};
  for (Rank rank : recipients) {
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
  out.plans = std::move(errors_);
  errors_.clear();
  for (Stamped& stamped : out.plans) stamped.plan.sequence = ++last_sequence_;
  while (StampNext(&free_, &out)) {
  }
  while (in_flight_.size() < max_in_flight_ && StampNext(&windowed_, &out)) {
  }
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
        stamped.recipients = pending->members;
      }
      AddItem(*pending, &stamped.plan);
      readiness_.Erase(handle);
    }
    if (stamped.plan.items.empty()) continue;
    Plan& plan = stamped.plan;
    plan.sequence = ++last_sequence_;
    const auto evicted = evicted_.find(plan.process_set);
    if (evicted != evicted_.end()) {
      plan.evicted = std::move(evicted->second);
      evicted_.erase(evicted);
    }
    if (stamped.recipients.front() == 0) in_flight_.insert(plan.sequence);
    out->plans.push_back(std::move(stamped));
    return true;
  }
  return false;
}

void Sequencer::AddItem(const Pending& pending, Plan* plan) {
  PlanItem item;
  const Agreement* agreement = CommonAgreement(pending);
  if (agreement != nullptr && cache_.Find(agreement->id) != nullptr) {
    item.cache_id = agreement->id;
    cache_.Touch(agreement->id);
  } else {
    item.name = pending.name;
    item.first_dims = FirstDims(pending);
    ResponseCache::Evicted evicted;
    item.cache_id = cache_.Insert(pending.asks.front().common(), item.first_dims, &evicted);
    for (const auto& [set, id] : evicted) evicted_[set].push_back(id);
  }
  plan->items.push_back(std::move(item));
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
    if (pending.complete()) continue;
    for (size_t i = 0; i < pending.asks.size(); ++i) {
      const uint64_t order = pending.asks[i].order;
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
  for (size_t i = 0; i < pending.asks.size(); ++i) {
    StallView view{pending.members[i], pending.asks[i].order != 0, ""};
    const auto wait = waits.find(view.rank);
    if (!view.ready && wait != waits.end()) view.waits_for = Describe(*wait->second);
    views.push_back(std::move(view));
  }
  return StallMessage(Describe(pending), now - pending.since, views);
}

}  // namespace tfring
