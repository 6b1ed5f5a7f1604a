#include "ops/runtime/protocol/negotiation/failures.h"

#include <algorithm>
#include <set>

#include "ops/runtime/protocol/message/text.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

void Failures::Reject(Rank from, const Request& request, Status error, bool ends_attempt) {
  AddressedPlan rejection{PlanFor(request), {from}};
  rejection.plan.error = std::move(error);
  rejection.plan.ends_attempt = ends_attempt;
  rejection.plan.items.push_back({request.name, 0, {}});
  plans_.push_back(std::move(rejection));
}

bool Failures::RejectIfOver(Rank from, const Request& request) {
  const std::string* why = attempts_.WhyOver(request.process_set, from);
  if (why == nullptr) return false;
  Reject(from, request, StepFailed(Describe(request) + SetText(request.process_set), *why), true);
  return true;
}

void Failures::End(PendingTensor* pending, Status error, bool ends_attempt) {
  stalls_.Forget(pending);
  AddressedPlan ending{PlanFor(pending->AnyRequest()), {}};
  for (size_t i = 0; i < pending->rank_requests.size(); ++i) {
    const RankRequest& rank_request = pending->rank_requests[i];
    const Rank rank = pending->members[i];
    if (rank_request.order == 0) continue;
    if (rank_request.common().kind == CollectiveKind::kJoin) {
      joins_.Leave(pending->process_set, rank);
    }
    if (!departed(rank)) ending.recipients.push_back(rank);
  }
  ending.plan.error = std::move(error);
  ending.plan.ends_attempt = ends_attempt;
  ending.plan.items.push_back({pending->name, 0, {}});
  if (!ending.recipients.empty()) plans_.push_back(std::move(ending));
  readiness_.Erase(pending->handle);
}

void Failures::EndDisagreement(PendingTensor* pending, Status error) {
  if (!pending->InRun()) return End(pending, std::move(error));
  EndWithAttempt(pending, std::move(error));
}

void Failures::EndWithAttempt(PendingTensor* pending, Status error) {
  const ProcessSetId set = pending->process_set;
  const std::vector<Rank> told = pending->ReadyRanks();
  const std::string why = "the step of " + RanksText(told) + " failed: " + error.ToString();
  End(pending, std::move(error), true);
  EndAttempt(set, told, why);
}

void Failures::EndAttempt(ProcessSetId set, const std::vector<Rank>& knowing,
                          const std::string& why) {
  std::vector<uint64_t> ending;
  std::set<Rank> told(knowing.begin(), knowing.end());
  for (const auto& [handle, pending] : readiness_.all()) {
    if (pending.process_set != set || pending.complete) continue;
    ending.push_back(handle);
    for (Rank rank : pending.ReadyRanks()) told.insert(rank);
  }
  // A rank that has joined the global set takes no part in this attempt and makes no call by which
  // it could learn that it is over: it leaves without a word.
  std::vector<Rank> leaving;
  for (Rank rank : *sets_.Find(set)) {
    const bool joined = set != kGlobalProcessSet && joins_.Has(kGlobalProcessSet, rank);
    const bool in_it = attempts_.WhyOver(set, rank) == nullptr;
    if (joined && in_it && told.count(rank) == 0) leaving.push_back(rank);
  }
  attempts_.End(set, why);
  for (Rank rank : leaving) attempts_.Leave(set, rank);
  for (uint64_t handle : ending) {
    PendingTensor* pending = readiness_.Find(handle);
    End(pending, StepFailed(Describe(*pending), why), true);
  }
}

Status Failures::OnWithdrawal(Rank from, ProcessSetId set, const Status& cause) {
  if (departed(from)) return OkStatus();
  if (sets_.Find(set) == nullptr) {
    // The set may have been removed while this was on its way.
    if (set > kGlobalProcessSet && set < sets_.NextId()) return OkStatus();
    return Internal("it gave up a step: " + NoSuchSet(set));
  }
  if (!sets_.Contains(set, from)) {
    return Internal("it gave up a step of process set " + std::to_string(set) +
                    ", of which it is no member");
  }
  const bool first = attempts_.WhyOver(set, from) == nullptr;
  if (first && cause.ok()) {
    return Internal("it gave up a step of process set " + std::to_string(set) +
                    " that has failed nowhere");
  }
  if (first) EndAttempt(set, {from}, cause.message());
  attempts_.Leave(set, from);
  return OkStatus();
}

void Failures::OnDeparted(Rank rank, const std::string& exception) {
  if (!departed_.emplace(rank, exception).second) return;
  departed_in_order_.push_back(rank);
  std::vector<uint64_t> waiting;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (std::binary_search(pending.members.begin(), pending.members.end(), rank)) {
      waiting.push_back(handle);
    }
  }
  for (uint64_t handle : waiting) CancelFor({rank}, readiness_.Find(handle));
}

bool Failures::EndIfDeparted(PendingTensor* pending) {
  const std::vector<Rank>& members = pending->members;
  std::vector<Rank> departed;
  for (Rank rank : departed_in_order_) {
    if (std::binary_search(members.begin(), members.end(), rank)) departed.push_back(rank);
  }
  if (departed.empty()) return false;
  CancelFor(std::move(departed), pending);
  return true;
}

// `departed` are in the order in which they left. Names the first: others often leave because one
// rank did.
void Failures::CancelFor(std::vector<Rank> departed, PendingTensor* pending) {
  const Rank first = departed.front();
  const std::string& error = departed_.at(first);
  std::vector<Rank> after(departed.begin() + 1, departed.end());
  std::sort(after.begin(), after.end());
  std::sort(departed.begin(), departed.end());
  const std::string detail =
      " (" + Describe(*pending) + ", asked for by " + RanksText(pending->ReadyRanks()) + "). ";
  if (!error.empty()) {
    return End(pending, Cancelled(error + ". Tensor '" + pending->name + "' was waiting for " +
                                  RanksText(departed) + detail + "See the log of rank " +
                                  std::to_string(first) + "; " + kWhatToDo));
  }
  std::string who = "rank " + std::to_string(first) + " has shut down";
  if (!after.empty()) who += ", after it " + RanksText(after) + ",";
  End(pending, Cancelled(who + " while tensor '" + pending->name + "' was waiting for " +
                         (after.empty() ? "it" : "them") + detail +
                         "Every rank has to run the same number of steps; do all have the same "
                         "amount of data?"));
}

}  // namespace tfring
