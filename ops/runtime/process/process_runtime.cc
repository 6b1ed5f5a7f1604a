#include "ops/runtime/process/process_runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ops/runtime/base/log.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/process/completions.h"
#include "ops/runtime/process/factory.h"
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
      Remember(options->topology);
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
    const auto gone = [this, stopping] {
      if (!stopping) ForkGuard::RuntimeEnded();
      std::lock_guard<std::mutex> lock(mutex);
      --abandoned;
      changed.notify_all();
    };
    if (ended->Abandon(Status(code, over + ": " + reason), later, gone)) ++abandoned;
    EndState(*ended, Aborted(why));
    if (stopping) return;  // Stop does the rest
    not_up = later;
    topology = nullptr;
    runtime = nullptr;
    phase = Phase::kDown;
    changed.notify_all();
  }

  // The same pointer for the same topology, so that many inits take no more memory than one. It
  // stays valid, because those who ask for their rank hold no lock.
  const Topology* Remember(const Topology& wanted) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const std::unique_ptr<const Topology>& known : topologies) {
      if (*known == wanted) return known.get();
    }
    topologies.push_back(std::make_unique<const Topology>(wanted));
    return topologies.back().get();
  }

  mutable std::mutex mutex;  // guards all but `topology`
  std::condition_variable changed;
  Phase phase = Phase::kDown;
  std::shared_ptr<RankRuntime> runtime;
  GenerationState state;  // without what only `runtime` knows while it is up
  Status not_up = NotInitialized();
  ProcessSetId last_set = kGlobalProcessSet;  // of past generations
  int abandoned = 0;                          // generations that have not ended yet
  std::vector<std::unique_ptr<const Topology>> topologies;
  std::atomic<const Topology*> topology{nullptr};  // null when not initialized
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
    if (options.generation == 0) options.generation = impl_->state.number + 1;
    impl_->phase = Impl::Phase::kStarting;
  }
  const Status started = impl_->Start(&options, std::move(connections));
  if (!started.ok()) {
    ForkGuard::RuntimeEnded();
    impl_->EnterPhase(Impl::Phase::kDown);
    return started;
  }
  const Topology* const topology = impl_->Remember(options.topology);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->state = GenerationState();
  impl_->state.number = options.generation;
  impl_->state.phase = GenerationState::Phase::kUp;
  impl_->not_up = NotInitialized();
  impl_->topology = topology;
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
  if (ForkGuard::InForkedChild()) return 0;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->abandoned;
}

void ProcessRuntime::Shutdown(const std::string& error) {
  if (ForkGuard::InForkedChild()) return;
  ShutDownPresent(error);
  if (Completions::IsAny()) return;  // it may be what keeps an old generation from its end
  std::unique_lock<std::mutex> lock(impl_->mutex);
  if (!impl_->changed.wait_for(lock, std::chrono::nanoseconds(kPastLimit),
                               [this] { return impl_->abandoned == 0; })) {
    TFRING_LOG(kWarning) << impl_->abandoned << " abandoned generations of this process have "
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

Result<std::shared_ptr<RankRuntime>> ProcessRuntime::Current(uint64_t generation) const {
  if (ForkGuard::InForkedChild()) return ForkGuard::ForkedChildError();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->phase != Impl::Phase::kUp) return impl_->not_up;
  if (generation == 0 || generation == impl_->state.number) return impl_->runtime;
  return FailedPrecondition("generation " + std::to_string(generation) +
                            " is over, and generation " + std::to_string(impl_->state.number) +
                            " has begun: run the step again");
}

void EnqueueIn(uint64_t generation, Request request, LocalCall call) {
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current(generation);
  if (runtime.ok()) return (*runtime)->Enqueue(std::move(request), std::move(call));
  if (call.done) call.done(runtime.status());
}

}  // namespace tfring
