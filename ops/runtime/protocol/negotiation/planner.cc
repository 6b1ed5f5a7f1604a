#include "ops/runtime/protocol/negotiation/planner.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/protocol/message/text.h"
#include "ops/runtime/protocol/negotiation/negotiated_values.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {
namespace {

// Appends the plan, once for all who get the same values.
void AddressPlan(AddressedPlan plan, std::vector<AddressedPlan>* plans) {
  if (plan.plan.kind != CollectiveKind::kAlltoall) {
    plans->push_back(std::move(plan));
    return;
  }
  const std::vector<PlanItem> items = std::exchange(plan.plan.items, {});
  for (size_t member = 0; member < plan.recipients.size(); ++member) {
    AddressedPlan own{plan.plan, {plan.recipients[member]}};
    for (const PlanItem& item : items) {
      own.plan.items.push_back(
          {item.name, item.cache_id,
           ValuesForMember(plan.plan.kind, item.negotiated_values, plan.recipients.size(), member),
           item.asked});
    }
    plans->push_back(std::move(own));
  }
}

}  // namespace

Planner::Planner(const Config& config, ProcessSets* sets, Readiness* readiness, Joins* joins,
                 Failures* failures)
    : sets_(*sets),
      readiness_(*readiness),
      joins_(*joins),
      failures_(*failures),
      max_in_flight_(static_cast<size_t>(std::max<int64_t>(1, config.max_plans_in_flight))),
      cache_(config.cache_capacity),
      throttled_(config),
      unthrottled_(config),
      locks_(config.lock_schedule && sets->Find(kGlobalProcessSet)->size() > 1) {}

void Planner::Queue(const PendingTensor& pending) {
  const bool with_rank_0 =
      pending.members.front() == 0 && (pending.absent.empty() || pending.absent.front() != 0);
  (with_rank_0 ? throttled_ : unthrottled_)
      .Add(pending.handle, pending.AnyRequest(), pending.absent, pending.path);
}

void Planner::OnPlanDone(uint64_t sequence, bool failed) {
  in_flight_.erase(sequence);
  if (failed) detector_.OnOtherPlan();
}

std::vector<AddressedPlan> Planner::Take() {
  std::vector<AddressedPlan> plans;
  // Again while there are errors: a plan that removes a process set ends the calls that wait in it.
  do {
    for (AddressedPlan& error : failures_.Take()) {
      error.plan.sequence = ++last_sequence_;
      NotePlan(error.plan);
      plans.push_back(std::move(error));
    }
    while (MakePlan(&unthrottled_, &plans)) {
    }
    while (in_flight_.size() < max_in_flight_ && MakePlan(&throttled_, &plans)) {
    }
  } while (!failures_.empty());
  return plans;
}

std::optional<LockMessage> Planner::MakeLock() {
  LockMessage lock;
  lock.batches = detector_.OnQuiet();
  if (lock.batches.empty()) return std::nullopt;
  lock.id = ++last_sequence_;
  lock.attempt = failures_.attempts().Over(kGlobalProcessSet);
  return lock;
}

void Planner::OnUnlock(const LockMessage& unlock) {
  last_sequence_ = unlock.id + unlock.high;
  detector_.OnUnlock(unlock.entered, unlock.reason.early);
}

// Remembers a plan that got its number.
void Planner::NotePlan(const Plan& plan) {
  if (!locks_) return;
  bool fits = plan.process_set == kGlobalProcessSet && plan.kind == CollectiveKind::kAllreduce &&
              plan.path == DataPath::kCpu && plan.error.ok() && plan.absent.empty();
  LockedBatch ids;
  bool has_bytes = false;
  for (const PlanItem& item : plan.items) {
    const auto agreement = cache_.Find(item.cache_id);
    // An item with a name has no cache id that all ranks sent, so it cannot be locked. Nor can a
    // staged call: staging would copy results to the device even after a recall, and early callers
    // may use them from the launch on.
    fits = fits && item.name.empty() && agreement != nullptr && agreement->paths.empty() &&
           agreement->request.path == DataPath::kCpu;
    if (!fits) break;
    has_bytes |= TotalBytes(agreement->request) > 0;
    ids.push_back(item.cache_id);
  }
  if (fits && has_bytes) {
    detector_.OnPlan(std::move(ids));
  } else {
    detector_.OnOtherPlan();
  }
}

// Makes a plan of the next batch of the queue; false if there is none.
bool Planner::MakePlan(FusionPlanner* queue, std::vector<AddressedPlan>* plans) {
  while (!queue->empty()) {
    AddressedPlan next;
    Plan& plan = next.plan;
    for (uint64_t handle : queue->Take()) {
      const PendingTensor* pending = readiness_.Find(handle);
      if (pending == nullptr) continue;  // it ended with an error meanwhile
      if (plan.items.empty()) {
        plan = PlanFor(pending->AnyRequest());
        plan.absent = pending->absent;
        plan.path = pending->path;
        next.recipients = pending->ReadyRanks();
      }
      AddItem(*pending, &plan);
      readiness_.Erase(handle);
    }
    if (plan.items.empty()) continue;
    plan.sequence = ++last_sequence_;
    const bool runs_here = next.recipients.front() == 0 && Traits(plan.kind).uses_backend;
    if (runs_here) in_flight_.insert(plan.sequence);
    NotePlan(plan);
    AddressPlan(std::move(next), plans);
    return true;
  }
  return false;
}

void Planner::AddItem(const PendingTensor& pending, Plan* plan) {
  if (!Traits(plan->kind).uses_backend) return AddMembershipItem(pending, plan);
  PlanItem item;
  item.asked = pending.asked;
  const Agreement* agreement = pending.CommonAgreement();
  if (agreement != nullptr && cache_.Find(agreement->id) != nullptr) {
    item.cache_id = agreement->id;
    plan->items.push_back(std::move(item));
    return;
  }
  item.name = pending.name;
  item.negotiated_values =
      agreement != nullptr ? agreement->negotiated_values : pending.negotiated_values;
  // A rank that is absent does not get the plan and could not learn the id; and an id says for all
  // members that they are in a run, or that they are not.
  const bool equal = !pending.InRun(true) || !pending.InRun(false);
  if (Traits(plan->kind).cacheable && pending.absent.empty() && equal) {
    item.cache_id =
        cache_.Insert({0, pending.rank_requests.front().common(), item.negotiated_values,
                       pending.DifferentCallSites(), pending.DifferentPaths()});
  }
  plan->items.push_back(std::move(item));
}

// The item of a join, or of a process set that is added or removed: the change happens here now,
// and on each rank when it takes the plan.
void Planner::AddMembershipItem(const PendingTensor& pending, Plan* plan) {
  PlanItem item;
  item.name = pending.name;
  item.asked = pending.asked;
  const Request& request = pending.AnyRequest();
  if (plan->kind == CollectiveKind::kJoin) {
    item.negotiated_values = {pending.LastReady()};
    joins_.Clear(pending.process_set);
  } else if (plan->kind == CollectiveKind::kAddProcessSet) {
    plan->error = AddSet(request, &item.negotiated_values);
  } else {
    plan->error = RemoveSet(request, &item.negotiated_values);
  }
  plan->ends_attempt = !plan->error.ok() && pending.InRun();
  if (plan->ends_attempt) {
    const std::vector<Rank> told = pending.ReadyRanks();
    failures_.EndAttempt(pending.process_set, told,
                         "the step of " + RanksText(told) + " failed: " + plan->error.ToString());
  }
  plan->items.push_back(std::move(item));
}

Status Planner::AddSet(const Request& request, std::vector<int64_t>* values) {
  const std::vector<Rank>& ranks = request.set_ranks;
  const ProcessSetId equal = sets_.FindEqual(ranks);
  if (equal >= 0) {
    return InvalidArgument(Describe(request) + ": a process set of the ranks " +
                           RanksString(ranks) + " is registered already, with id " +
                           std::to_string(equal) + "; use that one");
  }
  const ProcessSetId id = sets_.NextId();
  const Status added = sets_.Add(id, ranks);
  TFRING_CHECK(added.ok()) << added.message();  // CheckRequest has seen the ranks
  values->push_back(id);
  values->insert(values->end(), ranks.begin(), ranks.end());
  return OkStatus();
}

Status Planner::RemoveSet(const Request& request, std::vector<int64_t>* values) {
  const ProcessSetId id = request.removed_set;
  const Status removed = sets_.Remove(id);
  if (!removed.ok()) return InvalidArgument(Describe(request) + ": " + removed.message());
  cache_.DropSet(id);
  failures_.DropSet(id);
  std::vector<uint64_t> waiting;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (pending.process_set == id) waiting.push_back(handle);
  }
  for (uint64_t handle : waiting) {
    PendingTensor* pending = readiness_.Find(handle);
    failures_.End(pending, SetWasRemoved(pending->AnyRequest()));
  }
  *values = {id};
  return OkStatus();
}

}  // namespace tfring
