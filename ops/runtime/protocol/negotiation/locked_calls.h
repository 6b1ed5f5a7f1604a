#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_LOCKED_CALLS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_LOCKED_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/locked/locked_schedule.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/outgoing_requests.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/waiting_calls.h"

namespace tfring {

// A rank's part in a locked schedule: while there is one, the rank sends nothing about its calls,
// and makes the plans itself. See docs/adr/0045-locked-schedule.md. Part of the Participant.
class LockedCalls {
 public:
  LockedCalls(const ProcessSets* process_sets, const KnownIds* known, WaitingCalls* calls,
              OutgoingRequests* outgoing)
      : process_sets_(*process_sets), known_(*known), calls_(*calls), outgoing_(*outgoing) {}

  // A kLock frame: takes the schedule, or declines it. `attempt` is this rank's, of the global
  // process set. Internal if the schedule makes no sense here.
  Status OnLock(const LockMessage& lock, uint64_t attempt, TimePoint now);
  // A kStop frame.
  Status OnStop(const LockMessage& stop);
  // A kUnlock frame. Adds the batches that this rank has not entered and others have to the runs,
  // and to `recalled` the plans whose calls wait again, because not all ranks have entered them.
  Status OnUnlock(const LockMessage& unlock, std::vector<uint64_t>* recalled);

  // Whether this rank enters batches with a call of this id.
  bool Takes(uint32_t cache_id) const;
  // Such a call waits now.
  void OnCall(uint32_t cache_id, TimePoint now);
  // A call that is not in the schedule ends it.
  void StopFor(const Request& request);
  // Ends the locked schedule, if there is one. After kShutdown this rank takes no other.
  void Stop(UnlockReason reason);
  // Why a schedule in which something has waited for too long ends.
  UnlockReason WhatWaits() const;

  // Whether the plan is a batch of the present schedule that has not ended here.
  bool HasEntered(uint64_t sequence) const { return entered_.count(sequence) > 0; }
  // The backend has run a plan.
  void OnPlanEnded(uint64_t sequence);

  // From kLock to kUnlock; else null.
  const LockedSchedule* schedule() const { return schedule_.get(); }
  // The number of the schedule whose batches this rank enters; 0: none.
  uint64_t entering() const { return Locked() ? schedule_->id() : 0; }
  // Rounds that are known to be run by all ranks. Does not decrease.
  uint64_t rounds() const;

  // Hands over the batches that begin now.
  std::vector<PlanRun> TakeRuns() { return std::exchange(runs_, {}); }
  // Hands over news of the schedules that have begun or ended since the last call.
  std::vector<LockNews> TakeNews() { return std::exchange(news_, {}); }

 private:
  bool Locked() const { return schedule_ != nullptr && !schedule_->frozen(); }
  Status CheckLock(const LockMessage& lock) const;
  std::optional<UnlockReason> WhyNot(const LockMessage& lock, uint64_t attempt) const;
  UnlockReason WhyUnlockedBy(const Request& request) const;
  LockNews News() const;
  void Freeze(bool declined, UnlockReason reason);
  void EnterBatches(TimePoint now);
  UnlockReason WhyApart(LockedBatch early) const;
  PlanRun RunOf(uint64_t number, PlanEntry entry) const;

  const ProcessSets& process_sets_;
  const KnownIds& known_;
  WaitingCalls& calls_;
  OutgoingRequests& outgoing_;
  std::unique_ptr<LockedSchedule> schedule_;
  // Calls of batches that were entered and have not ended, by the number of the plan.
  std::map<uint64_t, std::vector<WaitingCall>> entered_;
  std::vector<PlanRun> runs_;
  std::vector<LockNews> news_;
  uint64_t rounds_ = 0;  // of schedules that are over
  bool declines_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_LOCKED_CALLS_H_
