#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_FAILURES_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_FAILURES_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/stall_reports.h"

namespace tfring {

// Ends calls with errors: requests that cannot count, tensors on which ranks disagree, what waits
// for a rank that has left, and attempts of process sets whose step failed on a rank. When an
// attempt is over, those of its tensors that are complete still run, on all ranks. All others end:
// some rank will not ask for them again. Requests that are pending afterwards belong to the next
// attempt. Part of the Sequencer.
class Failures {
 public:
  Failures(const ProcessSets* sets, Readiness* readiness, Joins* joins, StallReports* stalls)
      : sets_(*sets), readiness_(*readiness), joins_(*joins), stalls_(*stalls) {}

  // A request that is not recorded ends on the rank that sent it.
  void Reject(Rank from, const Request& request, Status error, bool ends_attempt = false);

  // A request of an attempt that is over ends on the rank that made it; true if it is one.
  bool RejectIfOver(Rank from, const Request& request);

  // Sends the error to all ranks whose requests have come. The others never know of the tensor.
  void End(PendingTensor* pending, Status error, bool ends_attempt = false);

  // The ranks disagree on the tensor. Each that asks for it gets the error. If a step fails with it
  // on one of them, the attempt is over for all: the others must not learn of that a second time,
  // in their next call.
  void EndDisagreement(PendingTensor* pending, Status error);

  // The ranks that have asked for the tensor get the error. The others must not wait for those when
  // they ask for it, so the attempt is over for all.
  void EndWithAttempt(PendingTensor* pending, Status error);

  // `knowing` learn of it otherwise.
  void EndAttempt(ProcessSetId set, const std::vector<Rank>& knowing, const std::string& why);

  // See Sequencer::OnWithdrawal.
  Status OnWithdrawal(Rank from, ProcessSetId set, const Status& cause);

  // `rank` has shut down; `exception` as in Sequencer::OnDeparted.
  void OnDeparted(Rank rank, const std::string& exception);
  bool departed(Rank rank) const { return departed_.count(rank) > 0; }
  // Ends a tensor that needs a rank that has left; false if there is none.
  bool EndIfDeparted(PendingTensor* pending);

  const Attempts& attempts() const { return attempts_; }
  void DropSet(ProcessSetId set) { attempts_.DropSet(set); }

  // Hands over the plans that end calls. They have no sequence number yet.
  std::vector<AddressedPlan> Take() { return std::exchange(plans_, {}); }
  bool empty() const { return plans_.empty(); }
  bool none_departed() const { return departed_.empty(); }

 private:
  void CancelFor(std::vector<Rank> departed, PendingTensor* pending);

  const ProcessSets& sets_;
  Readiness& readiness_;
  Joins& joins_;
  StallReports& stalls_;
  Attempts attempts_;
  std::vector<AddressedPlan> plans_;
  std::map<Rank, std::string> departed_;  // with the exceptions that ended them
  std::vector<Rank> departed_in_order_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_FAILURES_H_
