#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_RUNNER_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/runtime/backend/schedule/lane_header.h"
#include "ops/runtime/backend/schedule/progress_watch.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/backend/schedule/spin_policy.h"
#include "ops/runtime/backend/schedule/step_executor.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/data_transport.h"
#include "ops/runtime/interfaces/plan_marks.h"

namespace tfring {

// Runs schedules, one after another, over byte streams that never block.
//
// A schedule is a graph: each step names up to three earlier steps in `after` that it has to wait
// for. The runner counts for each step how many of these have not ended; when a step ends, it
// lowers the counts of the steps that wait for it, and a count of zero makes a step ready. Sends to
// one peer form a queue (a Lane), and so do receives from one peer, because a stream carries bytes
// in one order: only the first step of a lane is under way, once it is ready, and it may stop after
// any byte and continue later. Steps without a peer run as soon as they are ready. So every call of
// Advance asks each lane to move what its stream takes or has, executes what became ready, and
// returns; Run repeats this and, when nothing moves, spins for a moment and then sleeps until a
// stream that a ready step needs can move bytes. Bytes go directly from and into the tensors; what
// is received in order to be reduced is reduced from the transport's own memory, where it can be
// seen there, or through a small buffer that stays in the cache. The first bytes of a lane are a
// LaneHeader, so that two ranks that do not run the same schedule find it out.
//
// Used by one thread. After a failure the streams are in the middle of a message, and the runner
// must not be used again.
class ScheduleRunner {
 public:
  // What one stream keeps the schedule waiting for.
  struct Wait {
    Rank peer = kNoRank;
    bool receives = false;
    int64_t bytes = 0;    // of the step that is under way; 0 if all have been handed over
    std::string trouble;  // see DataTransport::PathTrouble
  };
  // Called when nothing has moved for `quiet`, with kWarn or kEnd. The run ends with the status
  // that is returned, unless it is OK.
  using QuietHook = std::function<Status(ProgressWatch::Verdict verdict, Duration quiet)>;

  // To end a Run, set `poison` and then interrupt the transport.
  ScheduleRunner(DataTransport* transport, const std::atomic<bool>* poison)
      : transport_(transport), poison_(poison) {}

  // From now on a run that makes no progress is reported.
  void Watch(ProgressWatch watch, QuietHook hook);

  // Begins a schedule for the plan with this number. `schedule`, `members` (world ranks by
  // position) and `executor`, which has been prepared for it, must outlive the schedule's run, and
  // so must `marks`, where it is noted, if it is not null.
  void Start(const Schedule& schedule, uint64_t sequence, const std::vector<Rank>& members,
             StepExecutor* executor, PlanMarks* marks = nullptr);

  // Moves what can be moved without blocking; true if anything was.
  Result<bool> Advance();

  bool done() const { return remaining_ == 0; }

  // Advances and waits until the schedule is done and the transport has sent what it took.
  // Cancelled if `poison` was set; Unavailable if a stream broke: suspect() is then the peer at its
  // other end. Internal if a peer sends something else than this schedule expects.
  Status Run();

  // What the present schedule waits for: streams that a ready step needs, and any others of its
  // that are in trouble.
  std::vector<Wait> Waits() const;

  Rank suspect() const { return suspect_; }
  // How often DataTransport::Wait returned.
  int64_t moves() const { return moves_.load(std::memory_order_relaxed); }  // that moved anything
  int64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  // The sends to one peer, or the receives from one peer, in order.
  struct Lane {
    int peer = 0;
    std::vector<int> steps;
    size_t head = 0;
    LaneHeader header;      // what we send; of a receiving lane, what has to come
    size_t lead_bytes = 0;  // the header and what follows it before the data
    size_t lead_moved = 0;
    char lead[kMaxLeadBytes] = {};  // what is sent, or what has come
    int64_t moved = 0;              // bytes of the head step
    int64_t carried = 0;            // bytes in `carry`: the received part of an element
    char carry[16] = {};
  };

  void LinkDependents();
  void AddToLane(std::vector<Lane>* lanes, int step);
  void BeginLane(Lane* lane, bool sends);
  bool HeadReady(const Lane& lane) const;
  bool Finished(const Lane& lane) const { return lane.head == lane.steps.size(); }
  void Complete(int step);
  void RunReady(bool* moved);
  Result<bool> AdvanceSend(Lane* lane);
  Result<bool> AdvanceRecv(Lane* lane);
  Result<int64_t> RecvPlain(Lane* lane, const Step& step);
  Result<int64_t> RecvElements(Lane* lane, const Step& step);
  Result<int64_t> RecvInto(Lane* lane, struct iovec* pieces, int count);
  Status CheckHeader(const Lane& lane) const;
  void TakeReceived(Lane* lane, const Step& step, const char* data, int64_t bytes);
  void FinishHead(Lane* lane, int64_t bytes);
  Status Fail(int peer, const Status& status);
  Status WaitForPeers();
  void FillWaitSet();
  void MarkWait(TimePoint now);
  Status CheckProgress();
  Result<bool> Spin();

  DataTransport* const transport_;
  const std::atomic<bool>* const poison_;
  const Schedule* schedule_ = nullptr;
  const std::vector<Rank>* members_ = nullptr;
  StepExecutor* executor_ = nullptr;
  PlanMarks* marks_ = nullptr;
  uint64_t sequence_ = 0;

  std::vector<Lane> sends_;
  std::vector<Lane> recvs_;
  std::vector<int> waiting_for_;  // by step: how many steps of `after` have not ended
  std::vector<int> dependents_;   // of step s: [first_dependent_[s], first_dependent_[s + 1])
  std::vector<int> first_dependent_;
  std::vector<int> ready_;       // steps without a peer: run at once
  std::vector<int> ready_long_;  // the same, but one at a time, between sends and receives
  size_t remaining_ = 0;
  Rank suspect_ = kNoRank;

  std::vector<char> staging_;  // of RecvElements; small enough to stay in the cache
  WaitSet wait_set_;           // kept for its memory
  ProgressWatch watch_;
  QuietHook quiet_hook_;
  // One for waits in which no peer has sent anything yet, since some ranks begin a collective later
  // than others, and one for those after that.
  SpinPolicy spins_before_data_;
  SpinPolicy spins_between_data_;
  bool data_has_come_ = false;  // in this schedule
  std::atomic<int64_t> wakeups_{0};
  std::atomic<int64_t> moves_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_RUNNER_H_
