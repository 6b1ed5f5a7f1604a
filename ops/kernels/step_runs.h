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
// fail: the other ranks' have to fail, too, and nobody may wait for what a failed one does not call
// any more (RankRuntime::FailRun).
//
// A step here is what has a step id of TensorFlow's. A function that is called within a step is
// often a step by itself, but all of them share one cancellation manager and fail together: they
// are one run of the runtime's.
//
// When an op fails, the executor first aborts the rendezvous of its own step with the error and
// then cancels the manager, which runs our callback. The rendezvous of the steps around it are
// aborted later, when the called function has ended. A run that ends well cancels the manager, too,
// when it is destroyed. What tells the two apart, and gives the cause, are the rendezvous.
//
// A step is known here from its guard (TfringStepGuard), which runs when the graph starts, to its
// end; without a guard (eager mode, TF1 sessions, bodies of loops) while collectives of it wait.
// Thread-safe; never destroyed.
class StepRuns final : public Steps {
 public:
  static StepRuns& Get();

  // The guard of a graph runs: the step may use the process set.
  void Guard(tensorflow::OpKernelContext* context, ProcessSetId process_set);

  // A collective is about to wait; returns the run that it belongs to, number 0 for none. If that
  // has failed already, the runtime knows it afterwards and refuses the call.
  StepRun Enter(tensorflow::OpKernelContext* context, ProcessSetId process_set);
  // It has ended; to be called before TensorFlow's `done`, after which the step may be gone. `run`
  // is the number that Enter returned. `failure`: not ok if the run fails because of it, of which
  // the guard may not have run yet.
  void Leave(uint64_t run, const tensorflow::OpKernelContext& context, const absl::Status& failure);

  // The guarded run that has not ended, or the failed one whose programs may still run.
  StepRun Surrounding() override;
  void OnProgramFailed(uint64_t run) override;

  // How many steps are known now, without those that have failed.
  int64_t count();

 private:
  struct Run;
  struct Step;
  enum class Caller { kGuard, kCollective };
  using RendezvousRef = tsl::core::RefCountPtr<tensorflow::Rendezvous>;
  // Released after the lock: the end of a rendezvous calls OnEnded.
  using Alive = std::vector<RendezvousRef>;

  StepRun Join(tensorflow::OpKernelContext* context, ProcessSetId process_set, Caller caller);
  // A run that is new began in this generation.
  Step* StepLocked(tensorflow::OpKernelContext* context, uint64_t generation, Alive* alive);
  // Of a step that is new; null if its run is new, too.
  std::shared_ptr<Run> FindRunLocked(tensorflow::CancellationManager* manager, Alive* alive);
  void GuardLocked(Step* step);
  // The run's cancellation manager was cancelled or is being destroyed.
  void OnCancelled(const std::shared_ptr<Run>& run);
  // A step's rendezvous is being destroyed. TensorFlow keeps those that were aborted for a while.
  void OnEnded(uint64_t step);
  // Ends the run if it can be known how, else it is closing. `next`: another run begins, so that
  // nothing is waited for that could tell the cause better.
  void CloseLocked(const std::shared_ptr<Run>& run, bool next, Alive* alive);
  // The same for the runs that are closing, but for this one. Null: none begins.
  void CloseOthersLocked(const Run* next, Alive* alive);
  void WaitLocked(const std::shared_ptr<Run>& run);
  // Tells the runtime how the run ended. Ok: well, unless calls wait.
  void EndLocked(const std::shared_ptr<Run>& run, const absl::Status& cause);
  // Without the lock: blocks until no memory of programs of runs that have failed is in use.
  void WaitForFailed();
  void ForgetStepLocked(Step* step);
  void SetSurroundingLocked();
  static bool InUse(const Run& run, Alive* alive);
  // A thread's body: looks after the runs that are closing; sleeps while there is none.
  void Watch();

  std::mutex mutex_;  // guards everything below, and what the steps and runs hold
  std::condition_variable closing_began_;
  std::unordered_map<uint64_t, std::unique_ptr<Step>> steps_;                        // by step id
  std::unordered_map<tensorflow::CancellationManager*, std::shared_ptr<Run>> runs_;  // not failed
  std::vector<std::shared_ptr<Run>> guarded_;  // of these, those with a guard
  // A guarded run that has failed, until another one begins: programs of it that XLA has compiled
  // may still run.
  std::shared_ptr<Run> failed_;
  StepRun surrounding_;
  // Cancelled, and no rendezvous was aborted yet, or none that tells why. Mostly the run has ended
  // well, and the rendezvous are destroyed right away.
  std::vector<std::shared_ptr<Run>> closing_;
  // The latest runs that have failed: functions of theirs may just begin.
  std::deque<std::shared_ptr<Run>> failed_runs_;
  std::vector<uint64_t> unsafe_;  // failed, and WaitForFailed has not waited for them yet
  bool watched_ = false;          // the thread runs
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_STEP_RUNS_H_
