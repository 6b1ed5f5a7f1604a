#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/locked_calls.h"
#include "ops/runtime/protocol/negotiation/outgoing_requests.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/waiting_calls.h"

namespace tfring {

// The half of the negotiation that every rank has, rank 0 included. It holds the calls of this rank
// that wait for a plan, by process set and name. A call goes to the sequencer as a request, or as
// the cache id that an earlier plan gave to an equal request. A plan comes back with names or ids;
// the participant looks up the waiting calls, checks that the plan is what they requested (the
// backend trusts it with this rank's buffers, so a wrong plan must not get through), and hands them
// out with the plan. Cache ids and process sets change exactly when the plan that says so is taken,
// so they are the same on all ranks at the same point of the plan stream.
//
// When a step fails here, or a plan says that one failed elsewhere, this rank leaves the attempt of
// the process set. The calls that wait then stay until rank 0 has answered each of them, with a
// plan that was complete already or with an error: so no plan names a call that is gone.
//
// Pure; part of the Negotiator.
class Participant {
 public:
  Participant(Rank rank, ProcessSets* process_sets)
      : rank_(rank),
        process_sets_(process_sets),
        locked_(process_sets, &known_, &calls_, &outgoing_) {}
  Participant(const Participant&) = delete;

  // `request` has passed AdmitRequest; no call of its name waits in its process set. Not ok, and
  // nothing is sent, if the attempt is over: the call ends with that.
  Status Submit(CallId id, Request request, uint64_t attempt, TimePoint now);

  // The step of this rank failed; `why` names the rank and the cause.
  void Withdraw(ProcessSetId set, uint64_t attempt, const std::string& why);

  // Hands over what the calls since the last call of this have to send.
  std::vector<RequestBatch> TakeOutgoing() { return outgoing_.Take(); }

  // Hands over the attempts that this rank has left, because of others, since the last call.
  std::vector<AttemptEnd> TakeLeft() { return std::exchange(left_, {}); }

  // Completes run->plan, whose items may be cache ids, and adds the members and the calls, which no
  // longer wait. Changes the process sets if the plan says so. Internal, and no call is taken, if
  // the plan makes no sense here.
  Status OnPlan(PlanRun* run);

  // Gives up: the calls that wait, ascending.
  std::vector<CallId> TakeCalls() { return calls_.TakeAll(); }

  // A kLock or kUnlock frame: as LockedCalls.
  Status OnLock(const LockMessage& lock, TimePoint now);
  Status OnUnlock(const LockMessage& unlock, std::vector<uint64_t>* recalled);
  LockedCalls& locked() { return locked_; }
  const LockedCalls& locked() const { return locked_; }

  size_t waiting() const { return calls_.size(); }
  int64_t cache_hits() const { return cache_hits_; }

 private:
  struct Attempt {
    uint64_t number = 0;
    Status error;  // of the one before
  };
  uint64_t AttemptOf(ProcessSetId set) const;
  void Leave(ProcessSetId set, const Status& error, Status reported);
  Status FindMembers(PlanRun* run) const;
  Status FindCall(const PlanRun& run, PlanItem* item, WaitingCall** call);
  Status CheckItem(const PlanRun& run, const PlanItem& item, const Request& request) const;
  Status ChangeSets(PlanRun* run);

  const Rank rank_;
  ProcessSets* const process_sets_;
  WaitingCalls calls_;
  KnownIds known_;
  OutgoingRequests outgoing_;
  LockedCalls locked_;
  std::map<ProcessSetId, Attempt> attempts_;  // of sets in which one is over
  std::vector<AttemptEnd> left_;
  uint64_t last_sequence_ = 0;
  int64_t cache_hits_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_
