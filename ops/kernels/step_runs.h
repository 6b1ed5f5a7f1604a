#ifndef TFRING_OPS_KERNELS_STEP_RUNS_H_
#define TFRING_OPS_KERNELS_STEP_RUNS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/process/step_programs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tfring {

// Tells the runtime which executions of graphs use collectives on this rank, and which of them
// fail. If one fails, the same execution fails on all ranks: no rank may wait for collectives that
// the failed rank no longer calls (RankRuntime::FailRun).
//
// A step is an execution with one TensorFlow step id. A function that a step calls is often a step
// with a different id. Both share one cancellation manager and fail together, so they are one run
// of the runtime.
//
// When an op fails, the executor first aborts the rendezvous of its step with the error and then
// cancels the manager, which runs our callback. The rendezvous of the enclosing steps are aborted
// later, when the called function has ended. A successful run also cancels the manager, when the
// manager is destroyed. Only the rendezvous tell success from failure and hold the cause.
//
// A step with a guard (TfringStepGuard), which runs when the graph starts, is known from its guard
// to its end. A step without a guard (eager mode, TF1 sessions, bodies of loops) is known while its
// collectives wait.
//
// How a run moves between the fields, with Run::State in brackets:
//
//                first guard or collective
//                            |
//                            v
//          runs_; guarded_ if it has a guard    [kOpen]
//              |                     |
//              |                     | cancelled, and the outcome is not known yet
//              |                     v
//              |             also closing_      [kClosing]
//              |                     |
//              | outcome known       | outcome known, or waited long enough (CloseLocked)
//              v                     v
//            in none of the three fields        [kOver]
//              |                     |
//              | succeeded           | failed
//              v                     v
//          forgotten             failed_runs_: until its steps have ended
//                                unsafe_: until WaitForFailed has waited for its XLA programs
//                                failed_, if it had a guard: until another run begins or no
//                                executor uses its steps
//
// Thread-safe; never destroyed.
class StepRuns final : public Steps {
 public:
  static StepRuns& Get();

  // Called by the guard of a graph: the step may use the process set.
  void Guard(tensorflow::OpKernelContext* context, ProcessSetId process_set);

  // Call this before a collective waits. Returns its run, number 0 for none. If the run has failed
  // already, the runtime learns that here and refuses the collective.
  StepRun Enter(tensorflow::OpKernelContext* context, ProcessSetId process_set);
  // Call this when the collective has ended, before TensorFlow's `done`, after which the step may
  // be gone. `run` is the number that Enter returned. `failure` is not ok if the run fails because
  // of this collective; the guard of the run may not have run yet.
  void Leave(uint64_t run, const tensorflow::OpKernelContext& context, const absl::Status& failure);

  // The one guarded run that has not ended, or the failed run whose XLA programs may still run;
  // number 0 if there is none or if several are guarded.
  StepRun Surrounding() override;
  void OnProgramFailed(uint64_t run) override;

  // Returns the number of known steps whose run is not over.
  int64_t count();

 private:
  struct Run;
  struct Step;
  enum class Caller { kGuard, kCollective };
  using RendezvousRef = tsl::core::RefCountPtr<tensorflow::Rendezvous>;
  // References to rendezvous. The caller releases them after mutex_, because the destructor of a
  // rendezvous calls OnEnded, which takes mutex_.
  using Alive = std::vector<RendezvousRef>;

  StepRun Join(tensorflow::OpKernelContext* context, ProcessSetId process_set, Caller caller);
  // Returns the step of `context`. Adds the step if it is new, and its run, with this generation,
  // if that is new.
  Step* StepLocked(tensorflow::OpKernelContext* context, uint64_t generation, Alive* alive);
  // Returns a new step's known run, by its cancellation manager; null if the run is new.
  std::shared_ptr<Run> FindRunLocked(tensorflow::CancellationManager* manager, Alive* alive);
  void GuardLocked(Step* step);
  // The run's cancellation manager was cancelled or is being destroyed.
  void OnCancelled(const std::shared_ptr<Run>& run);
  // The rendezvous of a guarded step is being destroyed: the step has ended. TensorFlow keeps an
  // aborted rendezvous for a while.
  void OnEnded(uint64_t step);
  // Ends the run if its outcome is known; otherwise moves it to closing_. While no rendezvous tells
  // the outcome, only a run whose collectives have waited 1 s ends. If the only known cause is that
  // it was cancelled, it ends after 1 s, or now if `next`: another run is starting.
  void CloseLocked(const std::shared_ptr<Run>& run, bool next, Alive* alive);
  // CloseLocked for all runs in closing_ except `next`, the run that starts; null if none starts.
  void CloseOthersLocked(const Run* next, Alive* alive);
  // Moves the run to closing_ and starts the thread of Watch.
  void WaitLocked(const std::shared_ptr<Run>& run);
  // Tells the runtime how the run ended. It succeeded if `cause` is ok and no collective waits.
  void EndLocked(const std::shared_ptr<Run>& run, const absl::Status& cause);
  // Blocks until no XLA program of a failed run uses memory. Call it without the lock.
  void WaitForFailed();
  void ForgetStepLocked(Step* step);
  void SetSurroundingLocked();
  // Returns whether a collective of the run waits, or an executor still holds one of its steps.
  static bool InUse(const Run& run, Alive* alive);
  // The body of a thread that calls CloseLocked for the runs in closing_. Sleeps if it is empty.
  void Watch();

  std::mutex mutex_;  // guards everything below, and the fields of the steps and runs
  std::condition_variable closing_began_;                      // closing_ is not empty
  std::unordered_map<uint64_t, std::unique_ptr<Step>> steps_;  // by step id
  // Runs that are not over, by cancellation manager.
  std::unordered_map<tensorflow::CancellationManager*, std::shared_ptr<Run>> runs_;
  std::vector<std::shared_ptr<Run>> guarded_;  // the guarded runs of runs_
  // The last guarded run that failed: its XLA programs may still run.
  std::shared_ptr<Run> failed_;
  StepRun surrounding_;  // what Surrounding returns
  // The runs of runs_ that were cancelled before a rendezvous told the cause. Most have succeeded,
  // and TensorFlow destroys their rendezvous right away.
  std::vector<std::shared_ptr<Run>> closing_;
  // The last 64 failed runs. One of their functions may be about to begin.
  std::deque<std::shared_ptr<Run>> failed_runs_;
  std::vector<uint64_t> unsafe_;  // failed runs for which WaitForFailed has not waited yet
  bool watched_ = false;          // the thread of Watch runs
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_STEP_RUNS_H_
