#include "ops/kernels/step_runs.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/kernels/abort_cause.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/process/process_runtime.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

using WeakRendezvous = tsl::core::WeakPtr<tf::Rendezvous>;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWatchInterval{50};
// How long waiting collectives of a cancelled run wait to learn the cause. It comes when all ops of
// the function that failed have ended.
constexpr std::chrono::seconds kCauseLimit{1};
constexpr size_t kMaxFailedRuns = 64;

// The runtime has no run 0.
uint64_t StepId(const tf::OpKernelContext& context) {
  const auto id = static_cast<uint64_t>(context.step_id());
  return id != 0 ? id : uint64_t{1} << 63;
}

// A loop over a dataset ends this way. It is not a failure unless a collective waits.
bool IsEndOfInput(const absl::Status& cause) { return absl::IsOutOfRange(cause); }

// Null for the rendezvous of a TF1 session, which lives on the session's stack.
tf::Rendezvous* Counted(tf::RendezvousInterface* rendezvous) {
  return dynamic_cast<tf::Rendezvous*>(rendezvous);
}

// True also while the manager's callbacks run.
bool IsCancelled(tf::CancellationManager* manager) {
  return manager->IsCancelling() || manager->IsCancelled();
}

// Returns whether an executor holds the rendezvous besides the caller. TensorFlow leaks one
// reference of each aborted rendezvous.
bool IsInUse(tf::RendezvousInterface* rendezvous) {
  const tf::Rendezvous* const counted = rendezvous == nullptr ? nullptr : Counted(rendezvous);
  return counted != nullptr && counted->RefCount() > (AbortCause(rendezvous).ok() ? 1 : 2);
}

template <typename T>
void Remove(std::vector<T>* all, const T& one) {
  all->erase(std::remove(all->begin(), all->end(), one), all->end());
}

}  // namespace

// Shared by the maps, the steps and the callback. mutex_ guards everything that is not const.
struct StepRuns::Run {
  Run(uint64_t first_step, uint64_t its_generation, tf::CancellationManager* its_manager)
      : number(first_step),
        generation(its_generation),
        manager(its_manager),
        token(its_manager->get_cancellation_token()) {}

  enum class State { kOpen, kClosing, kOver };

  bool waits() const;
  // An error if the generation in which the run began is over.
  Result<std::shared_ptr<RankRuntime>> runtime() const {
    return ProcessRuntime::Get().Current(generation);
  }

  const uint64_t number;                   // the runtime's
  const uint64_t generation;               // in which it began
  tf::CancellationManager* const manager;  // lives while the run is open
  const tf::CancellationToken token;
  std::vector<Step*> steps;  // oldest first; it usually encloses the others
  State state = State::kOpen;
  Clock::time_point cancelled;  // when the run began to close
  bool guarded = false;
};

// Guarded like Run.
struct StepRuns::Step {
  Step(uint64_t step_id, std::shared_ptr<Run> its_run, tf::RendezvousInterface* its_rendezvous)
      : id(step_id), run(std::move(its_run)), rendezvous(its_rendezvous) {}

  // Returns the rendezvous if it is still alive.
  tf::RendezvousInterface* Living(Alive* alive) const {
    if (waiting > 0) return rendezvous;
    if (weak == nullptr) return nullptr;
    alive->push_back(weak->GetNewRef());
    return alive->back().get();
  }

  const uint64_t id;
  const std::shared_ptr<Run> run;
  tf::RendezvousInterface* const rendezvous;  // lives while a collective waits
  int waiting = 0;                            // collectives
  bool guarded = false;
  std::unique_ptr<WeakRendezvous> weak;  // of a guarded step, if there can be one
};

bool StepRuns::Run::waits() const {
  return std::any_of(steps.begin(), steps.end(),
                     [](const Step* step) { return step->waiting > 0; });
}

StepRuns& StepRuns::Get() {
  static StepRuns* const runs = [] {
    auto* const made = new StepRuns();
    StepPrograms::Get().SetSteps(made);
    return made;
  }();
  return *runs;
}

StepRun StepRuns::Enter(tf::OpKernelContext* context, ProcessSetId process_set) {
  return Join(context, process_set, Caller::kCollective);
}

void StepRuns::Guard(tf::OpKernelContext* context, ProcessSetId process_set) {
  // At the end of a failed run its failure may not have been known yet.
  if (Join(context, process_set, Caller::kGuard).number != 0) WaitForFailed();
}

StepRun StepRuns::Join(tf::OpKernelContext* context, ProcessSetId process_set, Caller caller) {
  // A forked child has no runtime, and another thread may have held the lock at the fork.
  const Result<std::shared_ptr<RankRuntime>> present = ProcessRuntime::Get().Current();
  if (context->cancellation_manager() == nullptr || !present.ok()) return {};
  Alive alive;
  std::lock_guard<std::mutex> lock(mutex_);
  Step* const step = StepLocked(context, (*present)->generation(), &alive);
  const std::shared_ptr<Run> run = step->run;
  CloseOthersLocked(run.get(), &alive);  // this run begins after them
  if (failed_ != run && failed_ != nullptr) {
    failed_ = nullptr;
    SetSurroundingLocked();
  }
  const bool closes = run->state != Run::State::kOver && IsCancelled(run->manager);
  // For a collective, which may be an eager op, Enqueue does this, but after the failure.
  if ((caller == Caller::kGuard || closes) && run->generation == (*present)->generation()) {
    (*present)->BeginRun(run->number, process_set);
  }
  if (caller == Caller::kGuard) GuardLocked(step);
  if (caller == Caller::kCollective) ++step->waiting;
  if (closes) CloseLocked(run, false, &alive);
  return {run->number, run->generation};
}

StepRuns::Step* StepRuns::StepLocked(tf::OpKernelContext* context, uint64_t generation,
                                     Alive* alive) {
  const uint64_t id = StepId(*context);
  const auto known = steps_.find(id);
  if (known != steps_.end()) return known->second.get();
  tf::CancellationManager* const manager = context->cancellation_manager();
  std::shared_ptr<Run> run = FindRunLocked(manager, alive);
  if (run == nullptr) {
    run = std::make_shared<Run>(id, generation, manager);
    runs_[manager] = run;
    // RegisterCallback refuses if the manager is cancelled; Join finds that out.
    manager->RegisterCallback(run->token, [this, run] { OnCancelled(run); });
  }
  std::unique_ptr<Step>& step = steps_[id];
  step = std::make_unique<Step>(id, run, context->rendezvous());
  run->steps.push_back(step.get());
  return step.get();
}

std::shared_ptr<StepRuns::Run> StepRuns::FindRunLocked(tf::CancellationManager* manager,
                                                       Alive* alive) {
  const auto found = runs_.find(manager);
  if (found != runs_.end()) {
    const std::shared_ptr<Run>& run = found->second;
    // Otherwise that run's manager is gone, and a new manager has its address.
    if (run->state == Run::State::kOpen || IsCancelled(manager)) return run;
  }
  if (!IsCancelled(manager)) return nullptr;
  // A failed run that has not ended. Otherwise its manager is gone, too.
  for (const std::shared_ptr<Run>& run : failed_runs_) {
    if (run->manager == manager && InUse(*run, alive)) return run;
  }
  return nullptr;
}

bool StepRuns::InUse(const Run& run, Alive* alive) {
  return std::any_of(run.steps.begin(), run.steps.end(), [alive](const Step* step) {
    return step->waiting > 0 || IsInUse(step->Living(alive));
  });
}

StepRun StepRuns::Surrounding() {
  if (!ProcessRuntime::Get().initialized()) return {};
  Alive alive;
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_ != nullptr && surrounding_.number == failed_->number && !InUse(*failed_, &alive)) {
    failed_ = nullptr;
    SetSurroundingLocked();
  }
  return surrounding_;
}

void StepRuns::OnProgramFailed(uint64_t run) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (surrounding_.number == run) surrounding_ = StepRun();
}

void StepRuns::GuardLocked(Step* step) {
  if (step->guarded) return;
  step->guarded = true;
  tf::Rendezvous* const counted = Counted(step->rendezvous);
  if (counted != nullptr) {
    step->weak = std::make_unique<WeakRendezvous>(counted, [this, id = step->id] { OnEnded(id); });
  }
  Run& run = *step->run;
  if (run.guarded || run.state == Run::State::kOver) return;
  run.guarded = true;
  guarded_.push_back(step->run);
  SetSurroundingLocked();
}

void StepRuns::Leave(uint64_t run_number, const tf::OpKernelContext& context,
                     const absl::Status& failure) {
  if (run_number == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = steps_.find(StepId(context));
  if (found == steps_.end()) return;
  Step* const step = found->second.get();
  const std::shared_ptr<Run> run = step->run;
  if (!step->guarded && step->waiting == 1 && run->steps.size() == 1 &&
      run->state == Run::State::kClosing) {
    EndLocked(run, AbortCause(step->rendezvous));
  }
  --step->waiting;
  if (step->waiting > 0 || step->guarded) return;
  if (!failure.ok() && run->state != Run::State::kOver) {
    // Keep the step: a guard that runs from now on must not begin a run under a later attempt.
    run->manager->TryDeregisterCallback(run->token);
    return EndLocked(run, failure);
  }
  ForgetStepLocked(step);
  if (!run->steps.empty() || run->state == Run::State::kOver) return;
  // False if the callback is about to run: it will find that the run is over.
  run->manager->TryDeregisterCallback(run->token);
  EndLocked(run, absl::OkStatus());
}

void StepRuns::OnCancelled(const std::shared_ptr<Run>& run) {
  {
    Alive alive;
    std::lock_guard<std::mutex> lock(mutex_);
    if (run->state == Run::State::kOpen) CloseLocked(run, false, &alive);
  }
  WaitForFailed();  // the step ends after this
}

// Several threads may wait for one run. TensorFlow may also call this in the `done` of a
// collective. A wait there could block the later `done` that it waits for, so WaitForRun returns
// false, and the guard of the next run waits instead.
void StepRuns::WaitForFailed() {
  std::vector<uint64_t> failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failed = unsafe_;
  }
  for (const uint64_t run : failed) {
    if (!StepPrograms::Get().WaitForRun(run)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    Remove(&unsafe_, run);
  }
}

void StepRuns::CloseLocked(const std::shared_ptr<Run>& run, bool next, Alive* alive) {
  if (run->state == Run::State::kOpen) run->cancelled = Clock::now();
  const bool late = Clock::now() - run->cancelled > kCauseLimit;
  absl::Status cause;
  bool undecided = false;
  for (const Step* step : run->steps) {
    tf::RendezvousInterface* const living = step->Living(alive);
    const absl::Status of_step = AbortCause(living);
    if (living != nullptr && of_step.ok()) undecided = true;
    // A step that was cancelled because of another step does not hold the cause.
    if (!of_step.ok() && (cause.ok() || absl::IsCancelled(cause))) cause = of_step;
  }
  if (undecided && cause.ok() && !(late && run->waits())) return WaitLocked(run);
  if (undecided && absl::IsCancelled(cause) && !late && !next) return WaitLocked(run);
  EndLocked(run, cause);
}

void StepRuns::WaitLocked(const std::shared_ptr<Run>& run) {
  if (run->state == Run::State::kClosing) return;
  run->state = Run::State::kClosing;
  closing_.push_back(run);
  if (!watched_) {
    try {
      const SignalsBlocked for_the_thread;
      std::thread([this] { Watch(); }).detach();
      watched_ = true;
    } catch (const std::system_error&) {
      // If there is no thread, the next call of this rank checks the run.
    }
  }
  closing_began_.notify_one();
}

void StepRuns::CloseOthersLocked(const Run* next, Alive* alive) {
  const std::vector<std::shared_ptr<Run>> closing = closing_;
  for (const std::shared_ptr<Run>& run : closing) {
    if (run.get() != next) CloseLocked(run, next != nullptr, alive);
  }
}

void StepRuns::Watch() {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      closing_began_.wait(lock, [this] { return !closing_.empty(); });
    }
    std::this_thread::sleep_for(kWatchInterval);
    Alive alive;
    std::lock_guard<std::mutex> lock(mutex_);
    if (ProcessRuntime::Get().initialized()) {
      CloseOthersLocked(nullptr, &alive);
    } else {
      while (!closing_.empty()) EndLocked(std::shared_ptr<Run>(closing_.back()), absl::OkStatus());
    }
  }
}

void StepRuns::EndLocked(const std::shared_ptr<Run>& run, const absl::Status& cause) {
  run->state = Run::State::kOver;
  Remove(&closing_, run);
  Remove(&guarded_, run);
  const Result<std::shared_ptr<RankRuntime>> runtime = run->runtime();
  const auto found = runs_.find(run->manager);
  if (found != runs_.end() && found->second == run) runs_.erase(found);
  if (!run->waits() && (cause.ok() || IsEndOfInput(cause))) {
    if (runtime.ok()) (*runtime)->EndRun(run->number);
    while (!run->steps.empty()) ForgetStepLocked(run->steps.back());
  } else {
    if (runtime.ok()) (*runtime)->FailRun(run->number, ShortCause(cause));
    unsafe_.push_back(run->number);
    if (run->guarded) failed_ = run;
    failed_runs_.push_back(run);
    if (failed_runs_.size() > kMaxFailedRuns) {
      const std::shared_ptr<Run> oldest = failed_runs_.front();
      while (!oldest->steps.empty()) ForgetStepLocked(oldest->steps.back());
    }
  }
  SetSurroundingLocked();
}

void StepRuns::OnEnded(uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = steps_.find(step);
  if (found == steps_.end()) return;
  const std::shared_ptr<Run> run = found->second->run;
  ForgetStepLocked(found->second.get());
  if (run->steps.empty() && run->state != Run::State::kOver) EndLocked(run, absl::OkStatus());
}

void StepRuns::ForgetStepLocked(Step* step) {
  const std::shared_ptr<Run> run = step->run;
  Remove(&run->steps, step);
  steps_.erase(step->id);
  if (!run->steps.empty()) return;
  failed_runs_.erase(std::remove(failed_runs_.begin(), failed_runs_.end(), run),
                     failed_runs_.end());
}

void StepRuns::SetSurroundingLocked() {
  std::shared_ptr<Run> run = failed_;
  if (!guarded_.empty()) run = guarded_.size() == 1 && failed_ == nullptr ? guarded_[0] : nullptr;
  surrounding_ = run == nullptr ? StepRun() : StepRun{run->number, run->generation};
}

int64_t StepRuns::count() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(steps_.begin(), steps_.end(), [](const auto& step) {
    return step.second->run->state != Run::State::kOver;
  });
}

}  // namespace tfring

// For tests. Python calls it through ctypes.
extern "C" TFRING_EXPORT int64_t TfringStepsInFlight() { return tfring::StepRuns::Get().count(); }
