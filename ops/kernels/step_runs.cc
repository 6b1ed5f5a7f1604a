#include "ops/kernels/step_runs.h"

#include <algorithm>
#include <utility>

#include "ops/kernels/abort_cause.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/process/process_runtime.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

using WeakRendezvous = tsl::core::WeakPtr<tf::Rendezvous>;
using RendezvousRef = tsl::core::RefCountPtr<tf::Rendezvous>;

// The runtime's number for a step. It has no run 0.
uint64_t RunOf(const tf::OpKernelContext& context) {
  const auto run = static_cast<uint64_t>(context.step_id());
  return run != 0 ? run : uint64_t{1} << 63;
}

// While no collective waits, this is how a loop over a dataset ends, and not a failure.
bool IsEndOfInput(const absl::Status& cause) { return absl::IsOutOfRange(cause); }

// Null for the kind of rendezvous that a TF1 session has on its stack.
tf::Rendezvous* Counted(tf::RendezvousInterface* rendezvous) {
  return dynamic_cast<tf::Rendezvous*>(rendezvous);
}

}  // namespace

// Shared by the map and the callback. Guarded by StepRuns::mutex_ but for what is const.
struct StepRuns::Step {
  Step(uint64_t number, const tf::OpKernelContext& context)
      : run(number),
        manager(context.cancellation_manager()),
        token(manager->get_cancellation_token()),
        rendezvous(context.rendezvous()) {}

  const uint64_t run;
  tf::CancellationManager* const manager;  // both live while a collective waits
  const tf::CancellationToken token;
  tf::RendezvousInterface* const rendezvous;
  int waiting = 0;  // collectives
  bool guarded = false;
  bool over = false;                     // failed or ended, and not in the map any more
  std::unique_ptr<WeakRendezvous> weak;  // of a guarded step, if there can be one
};

StepRuns& StepRuns::Get() {
  static StepRuns* const runs = new StepRuns();
  return *runs;
}

void StepRuns::Guard(tf::OpKernelContext* context, ProcessSetId process_set) {
  Join(context, process_set, Caller::kGuard);
}

uint64_t StepRuns::Enter(tf::OpKernelContext* context, ProcessSetId process_set) {
  return Join(context, process_set, Caller::kCollective);
}

uint64_t StepRuns::Join(tf::OpKernelContext* context, ProcessSetId process_set, Caller caller) {
  FailAborted();
  const uint64_t run = RunOf(*context);
  if (context->cancellation_manager() == nullptr) return 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_ != run && failed_ != 0) {
      failed_ = 0;
      SetSurroundingLocked();
    }
    std::shared_ptr<Step>& step = steps_[run];
    if (step == nullptr) {
      step = std::make_shared<Step>(run, *context);
      const bool registered =
          step->manager->RegisterCallback(step->token, [this, step] { OnCancelled(step); });
      if (!registered) steps_.erase(run);
    }
    const auto found = steps_.find(run);
    if (found != steps_.end()) {
      Step& joined = *found->second;
      // For a collective, which may be an eager op, Enqueue does it.
      if (caller == Caller::kGuard) ProcessRuntime::Get().BeginRun(run, process_set);
      if (caller == Caller::kCollective) {
        ++joined.waiting;
      } else if (!joined.guarded) {
        joined.guarded = true;
        guarded_.push_back(run);
        SetSurroundingLocked();
        tf::Rendezvous* const counted = Counted(joined.rendezvous);
        if (counted != nullptr) {
          joined.weak = std::make_unique<WeakRendezvous>(counted, [this, run] { OnEnded(run); });
        }
      }
      return run;
    }
  }
  OnLateCaller(context, run, process_set, caller);
  return run;
}

void StepRuns::OnLateCaller(tf::OpKernelContext* context, uint64_t run, ProcessSetId process_set,
                            Caller caller) {
  const absl::Status cause = AbortCause(context->rendezvous());
  if (caller == Caller::kGuard && IsEndOfInput(cause)) return;
  ProcessRuntime::Get().BeginRun(run, process_set);
  ProcessRuntime::Get().FailRun(run, ShortCause(cause));
  if (caller == Caller::kCollective) return;
  std::lock_guard<std::mutex> lock(mutex_);
  failed_ = run;
  SetSurroundingLocked();
}

void StepRuns::Leave(uint64_t run) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = steps_.find(run);
  if (found == steps_.end()) return;
  const std::shared_ptr<Step> step = found->second;
  if (--step->waiting > 0 || step->guarded) return;
  // False if the callback is just about to run: it will find that the step is over.
  step->manager->TryDeregisterCallback(step->token);
  ForgetLocked(step);
  ProcessRuntime::Get().EndRun(run);
}

void StepRuns::OnCancelled(const std::shared_ptr<Step>& step) {
  RendezvousRef alive;  // released after the lock: its end may call OnEnded
  std::lock_guard<std::mutex> lock(mutex_);
  if (step->over) return;
  tf::RendezvousInterface* rendezvous = step->waiting > 0 ? step->rendezvous : nullptr;
  if (rendezvous == nullptr && step->weak != nullptr) {
    alive = step->weak->GetNewRef();
    rendezvous = alive.get();
  }
  const absl::Status cause = AbortCause(rendezvous);
  if (step->waiting == 0 && cause.ok() && rendezvous != nullptr) {
    closing_.push_back(step);
  } else {
    EndLocked(step, cause);
  }
}

void StepRuns::EndLocked(const std::shared_ptr<Step>& step, const absl::Status& cause) {
  ForgetLocked(step);
  if (step->waiting == 0 && (cause.ok() || IsEndOfInput(cause))) {
    ProcessRuntime::Get().EndRun(step->run);
  } else {
    ProcessRuntime::Get().FailRun(step->run, ShortCause(cause));
    if (step->guarded) failed_ = step->run;
  }
  SetSurroundingLocked();
}

void StepRuns::OnEnded(uint64_t run) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = steps_.find(run);
  if (found == steps_.end()) return;
  const std::shared_ptr<Step> step = found->second;
  EndLocked(step, absl::OkStatus());
}

void StepRuns::FailAborted() {
  std::vector<RendezvousRef> alive;  // released after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<std::shared_ptr<Step>> steps = closing_;
  for (const std::shared_ptr<Step>& step : steps) {
    alive.push_back(step->weak->GetNewRef());
    const absl::Status cause = AbortCause(alive.back().get());
    if (!cause.ok()) EndLocked(step, cause);
  }
}

void StepRuns::ForgetLocked(const std::shared_ptr<Step>& step) {
  step->over = true;
  closing_.erase(std::remove(closing_.begin(), closing_.end(), step), closing_.end());
  steps_.erase(step->run);
  guarded_.erase(std::remove(guarded_.begin(), guarded_.end(), step->run), guarded_.end());
}

void StepRuns::SetSurroundingLocked() {
  uint64_t run = failed_;
  if (!guarded_.empty()) run = guarded_.size() == 1 && failed_ == 0 ? guarded_[0] : 0;
  ProcessRuntime::Get().SetSurroundingRun(run);
}

int64_t StepRuns::count() {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(steps_.size());
}

}  // namespace tfring

// For tests; Python calls it through ctypes.
extern "C" TFRING_EXPORT int64_t TfringStepsInFlight() { return tfring::StepRuns::Get().count(); }
