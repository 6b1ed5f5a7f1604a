#include <algorithm>
#include <set>

#include "ops/runtime/protocol/negotiation/admission.h"
#include "ops/runtime/protocol/negotiation/sequencer.h"

// What happens when a step fails on a rank, or because ranks disagree. Of the tensors of the
// process set those that are complete still run, on all ranks. All others end: some rank will not
// ask for them any more. The tensors that are pending afterwards are all of the attempt that
// follows.
namespace tfring {

Status Sequencer::OnWithdrawal(Rank from, ProcessSetId set, const Status& cause) {
  if (departed_.count(from) > 0) return OkStatus();
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

// Every rank that asks for the tensor gets the error. If a step fails with it on one of them,
// the others must not learn of that a second time, in their next call: with this error the attempt
// is over for all.
void Sequencer::EndDisagreement(PendingTensor* pending, Status error) {
  if (!pending->InRun()) return EndWithError(pending, std::move(error));
  EndWithAttempt(pending, std::move(error));
}

// The ranks that have asked for the tensor get the error. The others must not wait for those when
// they ask for it, so the attempt is over for all.
void Sequencer::EndWithAttempt(PendingTensor* pending, Status error) {
  const ProcessSetId set = pending->process_set;
  const std::vector<Rank> told = pending->ReadyRanks();
  const std::string why = "the step of " + RanksText(told) + " failed: " + error.ToString();
  EndWithError(pending, std::move(error), true);
  EndAttempt(set, told, why);
}

// `knowing` learn of it otherwise.
void Sequencer::EndAttempt(ProcessSetId set, const std::vector<Rank>& knowing,
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
    EndWithError(pending, StepFailed(Describe(*pending), why), true);
  }
}

// A request of an attempt that is over ends on the rank that made it; true if it is one.
bool Sequencer::RejectIfOver(Rank from, const Request& request, uint64_t made_at) {
  const std::string* why = attempts_.WhyOverSince(request.process_set, from, made_at);
  if (why == nullptr) return false;
  RejectRequest(from, request, StepFailed(Describe(request) + SetText(request.process_set), *why),
                true);
  return true;
}

}  // namespace tfring
