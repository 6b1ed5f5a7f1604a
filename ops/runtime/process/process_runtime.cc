#include "ops/runtime/process/process_runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/process/call_site.h"
#include "ops/runtime/process/completions.h"
#include "ops/runtime/process/factory.h"
#include "ops/runtime/process/past_generations.h"
#include "ops/runtime/process/rank_runtime.h"
#include "ops/runtime/process/start_runtime.h"
#include "ops/runtime/transport/fork_guard.h"

namespace tfring {
namespace {

// How long Shutdown waits for abandoned generations.
constexpr Duration kPastLimit = 5 * kSecond;

Status NotInitialized() {
  return FailedPrecondition("tfring has not been initialized: call init() first");
}

void AddHealth(const RankRuntime& runtime, GenerationState* state) {
  const std::shared_ptr<const GenerationHealth> health = runtime.health();
  state->error = health->error;
  state->lost = health->lost;
  state->departed = health->departed;
  state->failed_here = runtime.failed_here();
  state->failed_elsewhere = runtime.failed_elsewhere();
}

}  // namespace

// What Init and Shutdown change. Both take long and hold no lock meanwhile; `phase` says that one
// is under way. A forked child must take no lock: the thread that holds it may not exist there.
struct ProcessRuntime::Impl {
  enum class Phase { kDown, kStarting, kUp, kStopping };

  // Null in a forked child, and if another generation is up than that of this number (0: any).
  std::shared_ptr<RankRuntime> Current(uint64_t generation = 0) const {
    if (ForkGuard::InForkedChild()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex);
    const bool wanted = generation == 0 || generation == state.number;
    return phase == Phase::kUp && wanted ? runtime : nullptr;
  }

  void EnterPhase(Phase next) {
    std::lock_guard<std::mutex> lock(mutex);
    phase = next;
    changed.notify_all();
  }

  // From kStopping to kDown.
  void Stop(const std::string& error) {
    runtime->Shutdown(error);  // nobody else changes the pointer in this phase
    FlushLog(kSecond);         // the process may now end without running what is left for its exit
    ForkGuard::RuntimeEnded();
    std::shared_ptr<RankRuntime> ended;
    std::lock_guard<std::mutex> lock(mutex);
    ended.swap(runtime);
    EndState(*ended, state.phase == GenerationState::Phase::kDown ? state.error : OkStatus());
    phase = Phase::kDown;
    changed.notify_all();
  }

  // In kStarting. Whatever goes wrong is a status, or this phase would never end.
  Status Start(InitOptions* options, Connections connections) {
    try {
      ForkGuard::RuntimeStarts();
      past.Remember(options->topology);
      Result<std::shared_ptr<RankRuntime>> started = StartRuntime(options, std::move(connections));
      if (!started.ok()) return started.status();
      std::lock_guard<std::mutex> lock(mutex);
      runtime = std::move(*started);
      return OkStatus();
    } catch (const std::exception& error) {
      return Internal("rank " + std::to_string(options->topology.rank) +
                      " could not start the runtime (" + error.what() +
                      "); it may have too little memory. init() can be called again");
    }
  }

  bool InsideDone() const { return runtime != nullptr && runtime->InsideDone(); }

  // The present generation is over, or about to be. `own`: this rank's reason, where it has one.
  // Under `mutex`.
  void EndState(const RankRuntime& ended, const Status& own) {
    AddHealth(ended, &state);
    state.phase = GenerationState::Phase::kDown;
    if (state.error.ok()) state.error = own;
    last_set = std::max(last_set, ended.LastProcessSet());
    past.AddRuns(ended.Runs());
  }

  // In phase kUp or kStopping, under `mutex`.
  void Abandon(const std::string& why) {
    const std::shared_ptr<RankRuntime> ended = runtime;
    const std::string over = "generation " + std::to_string(state.number) + " is over on rank " +
                             std::to_string(ended->rank());
    const GenerationHealth health = *ended->health();
    const std::string reason = health.error.ok() ? why : health.error.message();
    const StatusCode code = health.lost.empty() ? StatusCode::kAborted : StatusCode::kUnavailable;
    const Status later =
        FailedPrecondition(over + ", call init() to begin the next one: " + reason);
    const bool stopping = phase == Phase::kStopping;
    past.Abandoned();
    const auto gone = [this, stopping] {
      if (!stopping) ForkGuard::RuntimeEnded();
      past.Ended();
    };
    if (!ended->Abandon(Status(code, over + ": " + reason), later, gone)) past.Ended();
    EndState(*ended, Aborted(why));
    if (stopping) return;  // Stop does the rest
    not_up = later;
    topology = nullptr;
    runtime = nullptr;
    phase = Phase::kDown;
    changed.notify_all();
  }

  // Why there is no runtime.
  Status NotUp() const {
    std::lock_guard<std::mutex> lock(mutex);
    return not_up;
  }

  mutable std::mutex mutex;  // guards phase, runtime, state, not_up and last_set
  std::condition_variable changed;
  Phase phase = Phase::kDown;
  std::shared_ptr<RankRuntime> runtime;
  GenerationState state;  // without what only `runtime` knows while it is up
  Status not_up = NotInitialized();
  ProcessSetId last_set = kGlobalProcessSet;  // of past generations
  PastGenerations past;
  std::atomic<const Topology*> topology{nullptr};  // null when not initialized
  std::atomic<uint64_t> surrounding_run{0};
  std::atomic<bool (*)(uint64_t)> surrounding_is_over{nullptr};
  std::atomic<void (*)(uint64_t)> run_waiter{nullptr};
};

ProcessRuntime& ProcessRuntime::Get() {
  static ProcessRuntime* const runtime = new ProcessRuntime();
  return *runtime;
}

ProcessRuntime::ProcessRuntime() : impl_(new Impl()) {}

Status ProcessRuntime::Init(InitOptions options) {
  Connections connections = TakeConnections(&options);
  if (ForkGuard::InForkedChild()) return ForkGuard::ForkedChildError();
  {
    std::unique_lock<std::mutex> lock(impl_->mutex);
    if (!impl_->InsideDone()) {
      impl_->changed.wait(lock, [this] { return impl_->phase != Impl::Phase::kStopping; });
    }
    if (impl_->phase != Impl::Phase::kDown) {
      return FailedPrecondition(
          "tfring is initialized already, or just starting or stopping: call shutdown() before "
          "another init()");
    }
    if (options.generation != 0 && options.generation <= impl_->state.number) {
      return InvalidArgument("init got generation " + std::to_string(options.generation) +
                             ", and this process has had generation " +
                             std::to_string(impl_->state.number) + ": numbers have to ascend");
    }
    impl_->phase = Impl::Phase::kStarting;
  }
  const Status started = impl_->Start(&options, std::move(connections));
  if (!started.ok()) {
    ForkGuard::RuntimeEnded();
    impl_->EnterPhase(Impl::Phase::kDown);
    return started;
  }
  std::lock_guard<std::mutex> lock(impl_->mutex);
  const uint64_t next = impl_->state.number + 1;
  impl_->state = GenerationState();
  impl_->state.number = options.generation != 0 ? options.generation : next;
  impl_->state.phase = GenerationState::Phase::kUp;
  impl_->not_up = NotInitialized();
  impl_->topology = impl_->past.Remember(options.topology);
  impl_->phase = Impl::Phase::kUp;
  impl_->changed.notify_all();
  return OkStatus();
}

void ProcessRuntime::Abandon(const std::string& why, uint64_t generation) {
  if (ForkGuard::InForkedChild()) return;
  std::shared_ptr<RankRuntime> ended;  // is destroyed without the lock
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->phase != Impl::Phase::kUp && impl_->phase != Impl::Phase::kStopping) return;
  if (generation != 0 && generation != impl_->state.number) return;
  ended = impl_->runtime;
  impl_->Abandon(why);
}

GenerationState ProcessRuntime::generation() const {
  if (ForkGuard::InForkedChild()) return GenerationState();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  GenerationState state = impl_->state;
  if (impl_->runtime == nullptr || state.phase != GenerationState::Phase::kUp) return state;
  AddHealth(*impl_->runtime, &state);
  if (!state.error.ok()) state.phase = GenerationState::Phase::kBroken;
  return state;
}

ProcessSetId ProcessRuntime::last_process_set() const {
  if (ForkGuard::InForkedChild()) return kGlobalProcessSet;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->runtime == nullptr) return impl_->last_set;
  return std::max(impl_->last_set, impl_->runtime->LastProcessSet());
}

int ProcessRuntime::abandoned() const {
  return ForkGuard::InForkedChild() ? 0 : impl_->past.ending();
}

void ProcessRuntime::Shutdown(const std::string& error) {
  if (ForkGuard::InForkedChild()) return;
  ShutDownPresent(error);
  if (Completions::IsAny()) return;  // it may be what keeps an old generation from its end
  if (!impl_->past.WaitUntilEnded(MonotonicNow() + kPastLimit)) {
    TFRING_LOG(kWarning) << impl_->past.ending() << " abandoned generations of this process have "
                         << "threads that did not end within " << kPastLimit / kSecond << " s";
  }
}

void ProcessRuntime::ShutDownPresent(const std::string& error) {
  bool inside_done = false;
  const Topology* last = nullptr;
  {
    std::unique_lock<std::mutex> lock(impl_->mutex);
    inside_done = impl_->InsideDone();
    if (impl_->phase == Impl::Phase::kStarting || impl_->phase == Impl::Phase::kStopping) {
      if (inside_done) return;
      impl_->changed.wait(lock, [this] {
        return impl_->phase == Impl::Phase::kDown || impl_->phase == Impl::Phase::kUp;
      });
    }
    if (impl_->phase != Impl::Phase::kUp) return;
    impl_->phase = Impl::Phase::kStopping;
    last = impl_->topology.exchange(nullptr);
  }
  if (!inside_done) return impl_->Stop(error);
  // The thread that runs `done` cannot wait for its own end.
  SignalsBlocked for_the_thread;
  try {
    std::thread([impl = impl_, error] { impl->Stop(error); }).detach();
  } catch (const std::system_error&) {
    TFRING_LOG(kError) << "shutdown() inside a completion callback needs a thread, and there is "
                          "none: call it again from elsewhere";
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->topology = last;
    impl_->phase = Impl::Phase::kUp;
    impl_->changed.notify_all();
  }
}

bool ProcessRuntime::initialized() const {
  return impl_->topology.load() != nullptr && !ForkGuard::InForkedChild();
}

Result<Topology> ProcessRuntime::topology() const {
  const Topology* topology = impl_->topology.load();
  if (topology == nullptr) return NotInitialized();
  return *topology;
}

std::map<ProcessSetId, std::vector<Rank>> ProcessRuntime::ProcessSets() const {
  if (ForkGuard::InForkedChild()) return {};
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime == nullptr) return {};
  return runtime->AllProcessSets();
}

Result<std::vector<Rank>> ProcessRuntime::Members(ProcessSetId id) const {
  if (ForkGuard::InForkedChild()) return ForkGuard::ForkedChildError();
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime == nullptr) return impl_->NotUp();
  return runtime->Members(id);
}

void ProcessRuntime::Enqueue(Request request, LocalCall call) {
  if (ForkGuard::InForkedChild()) {
    if (call.done) call.done(ForkGuard::ForkedChildError());
    return;
  }
  AddCallSite(&request);
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  const Status refused =
      runtime == nullptr ? impl_->NotUp() : impl_->past.Admit(call.run, request.name);
  if (refused.ok()) return runtime->Enqueue(std::move(request), std::move(call));
  if (call.done) call.done(refused);
}

void ProcessRuntime::BeginRun(uint64_t run, ProcessSetId process_set) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr && !impl_->past.HasRun(run)) runtime->BeginRun(run, process_set);
}

void ProcessRuntime::EndRun(uint64_t run) {
  if (ForkGuard::InForkedChild() || impl_->past.EndRun(run)) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->EndRun(run);
}

void ProcessRuntime::FailRun(uint64_t run, const Status& cause) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr && !impl_->past.HasRun(run)) runtime->FailRun(run, cause);
}

void ProcessRuntime::SetSurroundingRun(uint64_t run) { impl_->surrounding_run = run; }

uint64_t ProcessRuntime::surrounding_run() const {
  const uint64_t run = impl_->surrounding_run;
  bool (*const is_over)(uint64_t) = impl_->surrounding_is_over;
  return run != 0 && is_over != nullptr && is_over(run) ? 0 : run;
}

void ProcessRuntime::SetSurroundingCheck(bool (*is_over)(uint64_t run)) {
  impl_->surrounding_is_over = is_over;
}

bool ProcessRuntime::WaitForRun(uint64_t run) const {
  void (*const wait)(uint64_t) = impl_->run_waiter;
  if (wait == nullptr) return true;
  if (Completions::IsAny()) return false;
  wait(run);
  return true;
}

void ProcessRuntime::SetRunWaiter(void (*wait)(uint64_t run)) { impl_->run_waiter = wait; }

void ProcessRuntime::ClearSurroundingRun(uint64_t run) {
  impl_->surrounding_run.compare_exchange_strong(run, 0);
}

uint64_t ProcessRuntime::Attempt(ProcessSetId process_set) const {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  return runtime == nullptr ? 0 : runtime->Attempt(process_set);
}

void ProcessRuntime::CancelCalls(const Status& cause) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->CancelCalls(cause);
}

Result<std::shared_ptr<DeviceStream>> ProcessRuntime::WrapStream(void* stream) {
  if (ForkGuard::InForkedChild()) return ForkGuard::ForkedChildError();
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime == nullptr) return impl_->NotUp();
  return runtime->WrapStream(stream);
}

void ProcessRuntime::MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->MarkStep(step, samples, input_nanoseconds);
}

void ProcessRuntime::MarkFit(const FitMark& fit) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->MarkFit(fit);
}

void ProcessRuntime::PauseRecord(bool paused) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->PauseRecord(paused);
}

void ProcessRuntime::Mark(const std::string& text) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->Mark(text);
}

void ProcessRuntime::NoteErrors(std::string note, std::string stall, uint64_t generation) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current(generation);
  if (runtime != nullptr) runtime->NoteErrors(std::move(note), std::move(stall));
}

WarningBell::Heard ProcessRuntime::WaitForWarning(Duration limit, uint64_t generation,
                                                  std::vector<std::string>* warnings) {
  std::shared_ptr<WarningBell> bell;
  if (const std::shared_ptr<RankRuntime> runtime = impl_->Current(generation))
    bell = runtime->bell();
  return bell == nullptr ? WarningBell::Heard::kEnd : bell->Wait(limit, warnings);
}

std::vector<Hop> ProcessRuntime::TakeHops(bool go_on) {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  return runtime == nullptr ? std::vector<Hop>() : runtime->TakeHops(go_on);
}

std::map<std::string, int64_t> ProcessRuntime::Counters() const {
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  return runtime == nullptr ? std::map<std::string, int64_t>() : runtime->Counters();
}

}  // namespace tfring
