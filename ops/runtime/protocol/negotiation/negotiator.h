#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATOR_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/locked/lock_coordinator.h"
#include "ops/runtime/protocol/locked/locked_schedule.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/participant.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

class Sequencer;

// Agrees with the other ranks on one order of collectives. Every rank has a Participant, which
// turns calls into requests and plans back into calls; rank 0 has the Sequencer as well, which
// decides (see both). The negotiator connects the two: it encodes and decodes frames, passes rank
// 0's own requests and plans directly, and makes every error of the protocol fatal, because ranks
// that disagree on the order of plans would exchange each other's data. Pure: no thread, socket or
// clock; the same calls give the same output. The table in engine.h shows when a call is here. Part
// of the engine; lives for one generation.
class Negotiator {
 public:
  // What a call made necessary. Frames go out in order; plans run in order.
  struct Output {
    std::vector<std::pair<Rank, std::string>> frames;
    std::vector<AttemptEnd> left;  // before the errors among `runs` end their calls
    std::vector<PlanRun> runs;
    std::vector<std::pair<CallId, Status>> refused;  // calls of attempts that are over
    std::vector<std::string> warnings;               // stalls, for the log
    std::vector<LockNews> locks;                     // that have begun or ended
    bool cancels = false;  // a frame ends calls because a rank that they need has left
    Status fatal;          // not ok: a peer broke the protocol, or the stall limit passed
  };

  // Changes `process_sets` when a plan says so, before the plan comes out of Drain.
  Negotiator(Rank rank, int size, const Config& config, ProcessSets* process_sets);
  ~Negotiator();

  // A call of this rank. `request` has passed AdmitRequest; no call of its name and process set is
  // in flight here.
  void Submit(CallId id, Request request, TimePoint now, uint64_t attempt = 0);

  // The step of this rank failed; `why` names the rank and the cause. Ends the attempt of the
  // process set on all ranks, unless it is over.
  void Withdraw(ProcessSetId set, uint64_t attempt, const std::string& why, TimePoint now);

  // A frame about requests, plans or locks from `from`.
  void OnFrame(Rank from, std::string_view frame, TimePoint now);

  // This rank's backend finished the plan: the sequencer may plan what became complete meanwhile.
  // Does nothing for a plan that moves no data: the sequencer does not count those.
  void OnPlanDone(uint64_t sequence, TimePoint now, bool failed = false);

  const Participant& participant() const { return participant_; }
  // Null on ranks other than 0.
  const LockCoordinator* coordinator() const { return coordinator_.get(); }

  // Once after the end of a locked schedule: the plans that not all ranks have entered. Their calls
  // wait again.
  std::optional<std::vector<uint64_t>> TakeRecalled() { return std::exchange(recalled_, {}); }

  // True on rank 0 during a locked schedule. Until it is over, KeptEvents keeps the frames about
  // requests.
  bool locked() const { return coordinator_ != nullptr && coordinator_->locked(); }

  // Ends the locked schedule, if there is one. After kShutdown no other follows on this rank.
  void StopLock(UnlockReason reason, TimePoint now);

  // As Sequencer::OnDeparted (rank 0 only).
  void OnDeparted(Rank rank, const std::string& error, TimePoint now);

  // Rank 0 itself has shut down, but stays the sequencer of the others. Gives up its own calls and
  // returns them, ascending. Call it after Drain. `error` as in OnDeparted.
  std::vector<CallId> Leave(const std::string& error, TimePoint now);

  // This process did not run for `pause`: no stall is judged by that time.
  void PutOff(Duration pause);

  // Checks that are due; `progress` of the backend differs from the last if data has moved.
  void OnTime(TimePoint now, int64_t progress = 0);

  // Hands over what the calls since the last Drain produced.
  Output Drain();

  // Gives up: the calls, ascending, that have not come out of Drain with a plan.
  std::vector<CallId> TakeCalls();

  TimePoint next_deadline() const;

  // As Planner::holds_back; false on ranks other than 0. Valid only after Drain.
  bool holds_back() const;

 private:
  void Fail(Status status);
  void FailPeer(Rank from, const Status& why);
  void PassOwnRequests();
  void ReceivePlan(Rank from, Plan plan);
  void SendRequests();
  void SendPlans();
  void OnLockFrame(Rank from, FrameType type, const LockMessage& message);
  void OnFrozen(Rank from, const LockMessage& message);
  void StartLock(const LockMessage& lock);
  void Unlock(const LockMessage& unlock);
  void SendToOthers(FrameType type, const LockMessage& message);
  Status EndOwnLock(const LockMessage& unlock);
  void TakeEntered();

  const Rank rank_;
  const int size_;
  Participant participant_;
  std::unique_ptr<Sequencer> sequencer_;          // rank 0 only
  std::unique_ptr<LockCoordinator> coordinator_;  // the same
  std::vector<RequestBatch> own_kept_;            // rank 0's own, during a lock
  LockTimer lock_timer_;
  std::optional<std::vector<uint64_t>> recalled_;
  Output out_;
  TimePoint now_ = 0;  // the latest seen
  bool dead_ = false;  // after a fatal status: nothing more is sent or received
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATOR_H_
