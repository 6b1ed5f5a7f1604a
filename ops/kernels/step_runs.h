#ifndef TFRING_OPS_KERNELS_STEP_RUNS_H_
#define TFRING_OPS_KERNELS_STEP_RUNS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ops/runtime/base/types.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// Tells the runtime which steps (executions of a graph, TensorFlow's step ids) use collectives on
// this rank, and which of them fail: the other ranks' steps have to fail, too, and nobody may wait
// for what a failed step does not call any more (ProcessRuntime::FailRun).
//
// When an op fails, the executor first aborts the step's rendezvous with the error and then cancels
// the step's cancellation manager, which runs our callback. A step that ends well cancels it, too,
// when it is destroyed. What tells the two apart, and gives the cause, is the rendezvous.
//
// A step is known here from its guard (TfringStepGuard), which runs when the graph starts, to its
// end; without a guard (eager mode, TF1 sessions) while collectives of it wait. Thread-safe; never
// destroyed.
class StepRuns {
 public:
  static StepRuns& Get();

  // The guard of a graph runs: the step may use the process set.
  void Guard(tensorflow::OpKernelContext* context, ProcessSetId process_set);

  // A collective is about to wait; returns the run that it belongs to. If the step has failed
  // already, the runtime knows that afterwards and refuses the call.
  uint64_t Enter(tensorflow::OpKernelContext* context, ProcessSetId process_set);
  // It has ended; to be called before TensorFlow's `done`, after which the step may be gone.
  void Leave(uint64_t run);

  // How many steps are known now.
  int64_t count();

 private:
  struct Step;
  enum class Caller { kGuard, kCollective };

  uint64_t Join(tensorflow::OpKernelContext* context, ProcessSetId process_set, Caller caller);
  void OnLateCaller(tensorflow::OpKernelContext* context, uint64_t run, ProcessSetId process_set,
                    Caller caller);
  // The step's cancellation manager was cancelled or is being destroyed.
  void OnCancelled(const std::shared_ptr<Step>& step);
  // Its rendezvous is being destroyed, which happens to no step that has failed.
  void OnEnded(uint64_t run);
  // Ends the closing steps that were aborted meanwhile.
  void FailAborted();
  // Takes the step out of the map; tells the runtime how it ended. Ok: well, unless calls wait.
  void EndLocked(const std::shared_ptr<Step>& step, const absl::Status& cause);
  void ForgetLocked(const std::shared_ptr<Step>& step);
  void SetSurroundingLocked();

  std::mutex mutex_;  // guards everything below, and what the steps hold
  std::unordered_map<uint64_t, std::shared_ptr<Step>> steps_;
  std::vector<uint64_t> guarded_;  // of these, the guarded ones
  // A guarded step that has failed, until another one begins: programs of it that XLA has compiled
  // may still run.
  uint64_t failed_ = 0;
  // Cancelled, with a rendezvous that still lives and was not aborted. Mostly the rendezvous is
  // destroyed right away. But if a function that is called within the step has failed, the abort is
  // still to come.
  std::vector<std::shared_ptr<Step>> closing_;
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_STEP_RUNS_H_
