#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/locked/locked_schedule.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/lock_news.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/name_table.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"

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
// While there is a lock (see LockedSchedule) it sends nothing, and makes the plans itself. Pure;
// part of the Negotiator.
class Participant {
 public:
  Participant(Rank rank, ProcessSets* process_sets) : rank_(rank), process_sets_(process_sets) {}

  // What is to be sent, in this order.
  struct Outgoing {
    std::optional<LockMessage> frozen;
    std::vector<std::pair<ProcessSetId, Status>> withdrawals;  // as in a kWithdraw frame
    std::vector<Request> requests;
    std::vector<uint32_t> cache_ids;
  };

  // `request` has passed AdmitRequest; no call of its name waits in its process set. Not ok, and
  // nothing is sent, if the attempt is over: the call ends with that.
  Status Submit(CallId id, Request request, uint64_t attempt, TimePoint now);

  // The step of this rank failed; `why` names the rank and the cause.
  void Withdraw(ProcessSetId set, uint64_t attempt, const std::string& why);

  // What the calls since the last time want to be sent; forgets it.
  std::vector<Outgoing> TakeOutgoing() { return std::exchange(outgoing_, {}); }

  // The attempts that this rank has left since the last time because of others; forgets them.
  std::vector<AttemptEnd> TakeLeft() { return std::exchange(left_, {}); }

  // Completes run->plan, whose items may be cache ids, and adds the members and the calls, which do
  // not wait any more. Changes the process sets if the plan says so. Internal, and no call is
  // taken, if the plan makes no sense here.
  Status OnPlan(PlanRun* run);

  // The sequencer has evicted these ids: their requests go out in full. Internal for an id that was
  // not sent.
  Status OnResend(const std::vector<uint32_t>& cache_ids);

  // Gives up: the calls that wait, ascending.
  std::vector<CallId> TakeCalls();

  // participant_lock.cc. A kLock frame: takes the lock, or declines it. Internal if the lock makes
  // no sense here.
  Status OnLock(const LockMessage& lock, TimePoint now);
  // A kStop frame.
  Status OnStop(const LockMessage& stop);
  // A kUnlock frame. Adds the batches that this rank has not entered and others have to the runs,
  // and to `recalled` the plans whose calls wait again, because not all ranks have entered them.
  Status OnUnlock(const LockMessage& unlock, std::vector<uint64_t>* recalled);
  // Ends a lock that there is. After kShutdown this rank takes no lock any more.
  void StopLock(UnlockReason reason);
  // Why a lock in which something has waited for too long ends.
  UnlockReason WhatWaits() const;
  // Whether the plan is a batch of the present lock that has not ended here.
  bool HasEntered(uint64_t sequence) const;
  // The backend has run a plan.
  void OnPlanEnded(uint64_t sequence);
  // The batches of the lock that begin now; forgets them.
  std::vector<PlanRun> TakeEntered() { return std::exchange(entered_runs_, {}); }
  const LockedSchedule* lock() const { return lock_.get(); }
  // The locks that have begun or ended since the last time; forgets them.
  std::vector<LockNews> TakeLockNews() { return std::exchange(lock_news_, {}); }
  // Rounds of locks that are known to be run by all ranks. Does not decrease.
  uint64_t lock_rounds() const;

  size_t waiting() const { return waiting_.size(); }
  int64_t cache_hits() const { return cache_hits_; }

 private:
  struct WaitingCall {
    CallId id = 0;
    Request request;
    uint64_t attempt = 0;
    uint32_t sent_id = 0;  // 0: sent in full
    bool in_plan = false;  // named by the plan that is being taken
  };
  struct Attempt {
    uint64_t number = 0;
    Status error;  // of the one before
  };
  uint64_t AttemptOf(ProcessSetId set) const;
  void Leave(ProcessSetId set, const Status& error, Status reported);
  Outgoing* Batch();
  Status FindMembers(PlanRun* run) const;
  Status FindCall(const PlanRun& run, PlanItem* item, WaitingCall** call);
  Status CheckItem(const PlanRun& run, const PlanItem& item, const Request& request) const;
  void TakeCall(WaitingCall* call);
  Status ChangeSets(PlanRun* run);
  // participant_lock.cc
  bool Locked() const { return lock_ != nullptr && !lock_->frozen(); }
  Status CheckLock(const LockMessage& lock) const;
  std::optional<UnlockReason> WhyNot(const LockMessage& lock) const;
  UnlockReason WhyUnlockedBy(const Request& request) const;
  LockNews News() const;
  void Freeze(bool declined, UnlockReason reason);
  void EnterBatches(TimePoint now);
  UnlockReason WhyApart(LockedBatch early) const;
  PlanRun RunOf(uint64_t number, PlanEntry entry) const;

  const Rank rank_;
  ProcessSets* const process_sets_;
  NameTable<WaitingCall> waiting_;
  // Calls that were sent as an id and wait. Stays true when the id is evicted meanwhile.
  std::unordered_map<uint32_t, WaitingCall*> sent_ids_;
  KnownIds known_;
  std::map<ProcessSetId, Attempt> attempts_;  // of sets in which one is over
  std::vector<Outgoing> outgoing_;
  std::vector<AttemptEnd> left_;
  std::unique_ptr<LockedSchedule> lock_;  // from kLock to kUnlock
  // Calls of batches that were entered and have not ended, by the number of the plan.
  std::map<uint64_t, std::vector<WaitingCall>> entered_;
  std::vector<PlanRun> entered_runs_;
  std::vector<LockNews> lock_news_;
  uint64_t lock_rounds_ = 0;  // of locks that are over
  bool declines_locks_ = false;
  uint64_t last_sequence_ = 0;
  int64_t cache_hits_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_
