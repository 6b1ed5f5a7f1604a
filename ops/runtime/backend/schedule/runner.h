#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_RUNNER_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/backend/schedule/step_executor.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/data_transport.h"

namespace tfring {

// Executes schedules over byte streams, one after the other, as a resumable state machine: sends
// and receives at once, straight from and into the tensors. Used by one thread. After a failure the
// streams are in the middle of something and the runner must not be used again.
class ScheduleRunner {
 public:
  // Run returns soon after `poison` became true and the transport was interrupted.
  ScheduleRunner(DataTransport* transport, const std::atomic<bool>* poison)
      : transport_(transport), poison_(poison) {}

  // Begins a schedule. `schedule`, `members` (world ranks by position) and `executor`, which is
  // prepared for it, must stay until it is done.
  void Start(const Schedule& schedule, const std::vector<Rank>& members, StepExecutor* executor);

  // Moves what can be moved without blocking; true if that was anything.
  Result<bool> Advance();

  bool done() const { return remaining_ == 0; }

  // Advances and waits until the schedule is done. Cancelled if poisoned; Unavailable if a stream
  // broke, and suspect() then names the peer.
  Status Run();

  Rank suspect() const { return suspect_; }
  // Returns from DataTransport::Wait.
  int64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  // What goes to, or comes from, one peer, in order.
  struct Lane {
    int peer = 0;
    std::vector<int> steps;
    size_t head = 0;
    int64_t moved = 0;    // bytes of the head step
    int64_t carried = 0;  // bytes in `carry`: received, but not a whole element yet
    char carry[16] = {};
  };

  void LinkDependents();
  void AddToLane(std::vector<Lane>* lanes, int step);
  bool HeadReady(const Lane& lane) const;
  void Complete(int step);
  void RunReady(bool* moved);
  Result<bool> AdvanceSend(Lane* lane);
  Result<bool> AdvanceRecv(Lane* lane);
  Result<int64_t> RecvPlain(Lane* lane, const Step& step);
  Result<int64_t> RecvReduce(Lane* lane, const Step& step);
  void TakeIn(Lane* lane, const Step& step, const char* data, int64_t bytes);
  void FinishHead(Lane* lane, int64_t bytes);
  Status Fail(int peer, const Status& status);
  Status WaitForPeers();
  Result<bool> Spin();

  DataTransport* const transport_;
  const std::atomic<bool>* const poison_;
  const Schedule* schedule_ = nullptr;
  const std::vector<Rank>* members_ = nullptr;
  StepExecutor* executor_ = nullptr;

  std::vector<Lane> sends_;
  std::vector<Lane> recvs_;
  std::vector<int> waiting_for_;  // by step: how many steps of `after` have not ended
  std::vector<int> dependents_;   // of step s: [first_dependent_[s], first_dependent_[s + 1])
  std::vector<int> first_dependent_;
  std::vector<int> ready_;       // local steps that may run at once
  std::vector<int> ready_long_;  // the same, but sends and receives come first
  size_t remaining_ = 0;
  Rank suspect_ = kNoRank;

  std::vector<char> staging_;   // what a kRecvReduce step receives; stays in the cache
  std::vector<Rank> readable_;  // arguments of Wait, kept for their memory
  std::vector<Rank> writable_;
  int spin_failures_ = 0;  // in a row
  int spins_to_skip_ = 0;
  std::atomic<int64_t> wakeups_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_RUNNER_H_
