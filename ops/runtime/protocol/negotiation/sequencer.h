#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/locked/lock_coordinator.h"
#include "ops/runtime/protocol/locked/lock_detector.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/fusion_planner.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/stall_inspector.h"
#include "ops/runtime/protocol/negotiation/validation.h"

namespace tfring {

// Rank 0's half of the negotiation: decides which collectives run, with which ranks and in which
// order, for all process sets. (Horovod's coordinator.)
//
// It collects the requests of all ranks by process set and tensor name. A tensor is complete when
// every member has sent its request, or has joined. Then it checks that the requests agree: if not,
// all of them end with the same error; if so, the tensor is fused with others like it into a Plan.
// Every Plan gets the next number of one sequence for all process sets, and every rank runs its
// Plans in that order. Two sets that share two ranks can therefore not wait for each other in
// opposite orders, which would be a deadlock.
//
// Of the plans in which rank 0 takes part at most max_plans_in_flight are unfinished at a time;
// what becomes complete meanwhile is fused ("batch while busy"). Plans of other ranks are sent at
// once, because rank 0 does not see them end.
//
// A request comes in full or, once a plan has given it a cache id, as that id. A plan whose members
// all sent the id carries the id alone, without name and negotiated values. Pure; part of rank 0's
// Negotiator.
class Sequencer {
 public:
  struct Addressed {
    Plan plan;
    std::vector<Rank> recipients;
  };
  struct Outgoing {
    // By sequence; several with one number where the members get different values.
    std::vector<Addressed> plans;
    std::map<Rank, std::vector<uint32_t>> resend;  // cache ids that each rank has to send in full
    std::optional<LockMessage> lock;               // behind the plans, to all ranks
  };

  Sequencer(const Config& config, ProcessSets process_sets);

  // Internal if no correct rank sends this. Ids are handled before requests.
  Status OnRequests(Rank from, std::vector<Request> requests,
                    const std::vector<uint32_t>& cache_ids, TimePoint now);

  // `from` leaves its attempt of the set. `cause` is why its step failed; ok if it only follows a
  // rank that has left before. What of the attempt is not complete ends on all ranks. Internal if
  // no correct rank sends this.
  Status OnWithdrawal(Rank from, ProcessSetId set, const Status& cause);

  // Rank 0's backend has finished the plan. Not needed for plans that move no data: they do not
  // count as unfinished.
  void OnPlanDone(uint64_t sequence, bool failed = false);

  // `rank` has shut down: whatever waits for it, now or later, ends with Cancelled. `error` names
  // the rank and the exception with which its process ends; it is empty if there was none.
  void OnDeparted(Rank rank, const std::string& error);

  // This process did not run for so long.
  void PutOff(Duration pause);

  // Appends stall reports that are due. DeadlineExceeded when a tensor has stalled for too long.
  Status OnTime(TimePoint now, std::vector<std::string>* warnings);

  // Hands over, and forgets, what the calls since the last Take produced; makes the plans that may
  // be sent now. None while there is a lock.
  Outgoing Take();

  // Complete tensors wait for a plan of rank 0 to end. To be asked after Take.
  bool holds_back() const { return !throttled_.empty(); }

  // The lock that Take has made is over; `unlock` as in a kUnlock frame. What ranks have requested
  // or withdrawn since then was not passed on yet.
  Status OnUnlock(const LockMessage& unlock, const LockCoordinator& ranks, TimePoint now);

  TimePoint next_deadline() const;

 private:
  // sequencer.cc: from requests to complete tensors, and to errors.
  // `made_at` is Attempts::LeftCount when the rank made the request.
  Status OnRequest(Rank from, Request request, uint64_t made_at, TimePoint now);
  Status OnResent(Rank from, Request request, TimePoint now);
  Status OnCacheId(Rank from, uint32_t id, TimePoint now);
  Status RecordRequest(Rank from, const std::vector<Rank>& of_set, RankRequest rank_request,
                       TimePoint now);
  Status CheckRoomFor(Rank from, const Request& request);
  void CompleteWithout(Rank joined, TimePoint now);
  void TryComplete(PendingTensor* pending, TimePoint now);
  void ValidateAndQueue(PendingTensor* pending);
  Status Validate(PendingTensor* pending) const;
  void RejectRequest(Rank from, const Request& request, Status error, bool ends_attempt = false);
  std::vector<Rank> DepartedOf(const std::vector<Rank>& members) const;
  void CancelFor(std::vector<Rank> departed, PendingTensor* pending);
  void EndWithError(PendingTensor* pending, Status error, bool ends_attempt = false);
  void StopStallWatch(PendingTensor* pending);
  // sequencer_plans.cc: from complete tensors to plans.
  bool MakePlan(FusionPlanner* planner, Outgoing* out);
  static void AddressPlan(Addressed plan, std::vector<Addressed>* plans);
  void AddItem(const PendingTensor& pending, Plan* plan);
  void AddMembershipItem(const PendingTensor& pending, Plan* plan);
  Status AddSet(const Request& request, std::vector<int64_t>* values);
  Status RemoveSet(const Request& request, std::vector<int64_t>* values);
  // sequencer_attempts.cc
  void EndDisagreement(PendingTensor* pending, Status error);
  void EndWithAttempt(PendingTensor* pending, Status error);
  void EndAttempt(ProcessSetId set, const std::vector<Rank>& knowing, const std::string& why);
  bool RejectIfOver(Rank from, const Request& request, uint64_t made_at);
  // sequencer_lock.cc
  void NotePlan(const Plan& plan);
  std::optional<LockMessage> MakeLock();
  bool Quiet() const;
  // sequencer_stalls.cc
  struct OldestWait {  // of one rank: its oldest request that waits for other ranks
    uint64_t order = 0;
    const PendingTensor* pending = nullptr;
    size_t position = 0;  // of the rank among the members
  };
  std::map<Rank, OldestWait> OldestWaits() const;
  std::string StallReport(const PendingTensor& pending, TimePoint now,
                          const std::map<Rank, OldestWait>& waits) const;
  TimePoint CircleDeadline() const;
  void CheckCircles(TimePoint now, std::vector<std::string>* warnings);
  std::vector<StallWait> IncompleteWaits() const;

  ProcessSets sets_;  // as of the last plan that was made
  const size_t max_plans_in_flight_;
  const Duration stall_shutdown_;
  const bool check_call_sites_;
  const size_t max_pending_bytes_;
  Layouts layouts_;
  Readiness readiness_;
  Joins joins_;
  Attempts attempts_;
  ResponseCache cache_;
  StallInspector stalls_;
  const Duration circle_warning_;           // as long as ranks may wait for each other
  std::map<Rank, TimePoint> last_request_;  // when a rank last asked for anything
  TimePoint next_circle_check_ = 0;         // not before
  uint64_t reported_circle_ = 0;            // handle of its oldest tensor
  FusionPlanner throttled_;                 // complete tensors in which rank 0 takes part
  FusionPlanner unthrottled_;               // all others
  std::vector<Addressed> errors_;           // plans that end calls; without a sequence number yet
  std::map<Rank, std::vector<uint32_t>> resend_;
  // For each request that a rank has to resend, in this order: Attempts::LeftCount when it was
  // made.
  std::map<Rank, std::deque<uint64_t>> awaited_;
  std::map<Rank, std::vector<std::pair<uint64_t, Request>>> late_joins_;  // of those ranks; same
  std::map<ProcessSetId, std::vector<uint32_t>> evicted_;  // cache ids; no plan has said so yet
  std::set<uint64_t> in_flight_;                           // plans that rank 0 is running
  std::map<Rank, std::string> departed_;                   // with the exceptions that ended them
  std::vector<Rank> departed_in_order_;
  const bool locks_;  // whether it may lock at all
  LockDetector detector_;
  std::optional<LockMessage> lock_;  // while there is one
  uint64_t last_sequence_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_
