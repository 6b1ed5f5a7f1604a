#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/locked/lock_coordinator.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/failures.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/planner.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/stall_reports.h"
#include "ops/runtime/protocol/negotiation/validation.h"

namespace tfring {

// Rank 0's half of the negotiation: decides which collectives run, with which ranks and in which
// order, for all process sets. (Horovod's coordinator.)
//
// It collects the requests of all ranks by process set and tensor name. A tensor is complete when
// every member has sent its request, or has joined. Then it checks that the requests agree: if not,
// all of them end with the same error (Failures); if so, the tensor is fused with others like it
// into a Plan (Planner). Every Plan gets the next number of one sequence for all process sets, and
// every rank runs its Plans in that order. Two sets that share two ranks can therefore not wait for
// each other in opposite orders, which would be a deadlock.
//
// A request comes in full or, once a plan has given it a cache id, as that id. A plan whose members
// all sent the id carries the id alone, without name and negotiated values. Pure; part of rank 0's
// Negotiator.
class Sequencer {
 public:
  struct Outgoing {
    std::vector<AddressedPlan> plans;  // as Planner::Take
    std::optional<LockMessage> lock;   // behind the plans, to all ranks
  };

  Sequencer(const Config& config, ProcessSets process_sets);
  Sequencer(const Sequencer&) = delete;

  // Internal if no correct rank sends this. Ids are handled before requests.
  Status OnRequests(Rank from, std::vector<Request> requests,
                    const std::vector<uint32_t>& cache_ids, TimePoint now);

  // `from` leaves its attempt of the set. `cause` is why its step failed; ok if it only follows a
  // rank that has left before. What of the attempt is not complete ends on all ranks. Internal if
  // no correct rank sends this.
  Status OnWithdrawal(Rank from, ProcessSetId set, const Status& cause) {
    return failures_.OnWithdrawal(from, set, cause);
  }

  // `rank` has shut down: whatever waits for it, now or later, ends with Cancelled. `error` names
  // the rank and the exception with which its process ends; it is empty if there was none.
  void OnDeparted(Rank rank, const std::string& error) { failures_.OnDeparted(rank, error); }

  // Makes the plans that may be sent now, and hands over what the calls since the last Take
  // produced. Not during a locked schedule.
  Outgoing Take();

  // The locked schedule that Take has made is over; `unlock` as in a kUnlock frame. What ranks have
  // requested or withdrawn since then was not passed on yet.
  Status OnUnlock(const LockMessage& unlock, const LockCoordinator& ranks, TimePoint now);

  Planner& planner() { return planner_; }
  StallReports& stalls() { return stalls_; }

 private:
  Status OnRequest(Rank from, Request request, TimePoint now);
  Status OnCacheId(Rank from, uint32_t id, TimePoint now);
  Status RecordRequest(Rank from, const std::vector<Rank>& of_set, RankRequest rank_request,
                       TimePoint now);
  Status CheckRoomFor(Rank from, const Request& request);
  void CompleteWithout(Rank joined, TimePoint now);
  void TryComplete(PendingTensor* pending, TimePoint now);
  void ValidateAndQueue(PendingTensor* pending);
  Status Validate(PendingTensor* pending) const;
  bool Quiet() const;

  const bool check_call_sites_;
  const size_t max_pending_bytes_;
  ProcessSets sets_;  // after the last plan that was made
  Layouts layouts_;
  Readiness readiness_;
  Joins joins_;
  StallReports stalls_;
  Failures failures_;
  Planner planner_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_
