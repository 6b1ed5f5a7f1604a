#include "ops/runtime/process/process_runtime.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/process/call_site.h"
#include "ops/runtime/process/factory.h"
#include "ops/runtime/process/rank_runtime.h"
#include "ops/runtime/transport/fork_guard.h"

namespace tfring {
namespace {

Status NotInitialized() {
  return FailedPrecondition("tfring has not been initialized: call init() first");
}

// The name of this rank's host; "" where the caller has not said it.
std::string HostOf(const InitOptions& options) {
  const auto rank = static_cast<size_t>(options.topology.rank);
  return rank < options.hosts.size() ? options.hosts[rank] : "";
}

// A record in memory is better than none, and no reason not to train.
std::unique_ptr<Recorder> MakeRecorder(const InitOptions& options) {
  const RecordOptions& wanted = options.record;
  const Topology& topology = options.topology;
  if (!wanted.enabled) return nullptr;
  RecordIdentity identity{wanted.path,   wanted.job,          HostOf(options), wanted.boot,
                          topology.rank, topology.local_rank, topology.size};
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  if (!made.ok() && !identity.path.empty()) {
    TFRING_LOG(kWarning) << made.status().message()
                         << ": what this rank does can be seen while it runs only; set "
                            "TFRING_RECORD_DIR to a folder with room";
    identity.path.clear();
    made = Recorder::Create(identity);
  }
  return made.ok() ? std::move(*made) : nullptr;
}

Result<std::shared_ptr<RankRuntime>> StartRuntime(InitOptions* options, Connections connections) {
  Result<Config> config = ParseConfig(options->config);
  if (!config.ok()) return config.status();
  ConfigureLog(*config);
  SetLogIdentity({options->topology.rank, options->topology.size, HostOf(*options)});
  const Duration limit = static_cast<Duration>(options->start_timeout_seconds * kSecond);
  std::unique_ptr<Recorder> recorder;
  if (options->hosts.empty() ||
      options->hosts.size() == static_cast<size_t>(options->topology.size)) {
    recorder = MakeRecorder(*options);
  }
  Result<RankRuntimeParts> parts = ChooseParts(options->topology, std::move(options->hosts),
                                               std::move(connections), *config, limit);
  if (!parts.ok()) return parts.status();
  parts->recorder = std::move(recorder);
  parts->keep_record = options->record.keep;
  Result<std::unique_ptr<RankRuntime>> runtime = RankRuntime::Start(std::move(*parts));
  if (!runtime.ok()) return runtime.status();
  return std::shared_ptr<RankRuntime>(std::move(*runtime));
}

bool Same(const Topology& a, const Topology& b) {
  return a.rank == b.rank && a.size == b.size && a.local_rank == b.local_rank &&
         a.local_size == b.local_size && a.cross_rank == b.cross_rank &&
         a.cross_size == b.cross_size;
}

}  // namespace

// What Init and Shutdown change. Both take long and hold no lock meanwhile; `phase` says that one
// is under way. A forked child must take no lock: the thread that holds it may not exist there.
struct ProcessRuntime::Impl {
  enum class Phase { kDown, kStarting, kUp, kStopping };

  std::shared_ptr<RankRuntime> Current() const {
    std::lock_guard<std::mutex> lock(mutex);
    return phase == Phase::kUp ? runtime : nullptr;
  }

  void EnterPhase(Phase next) {
    std::lock_guard<std::mutex> lock(mutex);
    phase = next;
    changed.notify_all();
  }

  // From kStopping to kDown.
  void Stop(const std::string& error) {
    runtime->Shutdown(error);  // nobody else touches the pointer in this phase
    FlushLog(kSecond);         // the process may now end without running what is left for its exit
    ForkGuard::RuntimeEnded();
    std::shared_ptr<RankRuntime> ended;
    std::lock_guard<std::mutex> lock(mutex);
    ended.swap(runtime);
    phase = Phase::kDown;
    changed.notify_all();
  }

  // In kStarting. Whatever goes wrong is a status, or this phase would never end.
  Status Start(InitOptions* options, Connections connections) {
    try {
      ForkGuard::RuntimeStarts();
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (Remembered(options->topology) == nullptr) {
          topologies.push_back(std::make_unique<const Topology>(options->topology));
        }
      }
      Result<std::shared_ptr<RankRuntime>> started = StartRuntime(options, std::move(connections));
      if (!started.ok()) return started.status();
      runtime = std::move(*started);  // nobody else touches the pointer in this phase
      return OkStatus();
    } catch (const std::exception& error) {
      return Internal("rank " + std::to_string(options->topology.rank) +
                      " could not start the runtime (" + error.what() +
                      "); it may have too little memory. init() can be called again");
    }
  }

  // The same pointer for the same topology, so that many inits take no more memory than one. Null
  // if there has been none like it. Under `mutex`.
  const Topology* Remembered(const Topology& wanted) const {
    for (const std::unique_ptr<const Topology>& known : topologies) {
      if (Same(*known, wanted)) return known.get();
    }
    return nullptr;
  }

  bool InsideDone() const { return runtime != nullptr && runtime->OnCompletionThread(); }

  mutable std::mutex mutex;  // guards phase, runtime and topologies
  std::condition_variable changed;
  Phase phase = Phase::kDown;
  std::shared_ptr<RankRuntime> runtime;
  // Never removed, because readers of `topology` hold no lock.
  std::vector<std::unique_ptr<const Topology>> topologies;
  std::atomic<const Topology*> topology{nullptr};  // null when not initialized
  std::atomic<uint64_t> surrounding_run{0};
  std::atomic<bool (*)(uint64_t)> surrounding_is_over{nullptr};
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
    impl_->phase = Impl::Phase::kStarting;
  }
  const Status started = impl_->Start(&options, std::move(connections));
  if (!started.ok()) {
    ForkGuard::RuntimeEnded();
    impl_->EnterPhase(Impl::Phase::kDown);
    return started;
  }
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->topology = impl_->Remembered(options.topology);
  impl_->phase = Impl::Phase::kUp;
  impl_->changed.notify_all();
  return OkStatus();
}

void ProcessRuntime::Shutdown(const std::string& error) {
  if (ForkGuard::InForkedChild()) return;
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
  if (runtime == nullptr) return NotInitialized();
  return runtime->Members(id);
}

void ProcessRuntime::Enqueue(Request request, LocalCall call) {
  if (ForkGuard::InForkedChild()) {
    if (call.done) call.done(ForkGuard::ForkedChildError());
    return;
  }
  AddCallSite(&request);
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) return runtime->Enqueue(std::move(request), std::move(call));
  if (call.done) call.done(NotInitialized());
}

void ProcessRuntime::BeginRun(uint64_t run, ProcessSetId process_set) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->BeginRun(run, process_set);
}

void ProcessRuntime::EndRun(uint64_t run) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->EndRun(run);
}

void ProcessRuntime::FailRun(uint64_t run, const Status& cause) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->FailRun(run, cause);
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

void ProcessRuntime::ClearSurroundingRun(uint64_t run) {
  impl_->surrounding_run.compare_exchange_strong(run, 0);
}

uint64_t ProcessRuntime::Attempt(ProcessSetId process_set) const {
  if (ForkGuard::InForkedChild()) return 0;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  return runtime == nullptr ? 0 : runtime->Attempt(process_set);
}

void ProcessRuntime::CancelCalls(const Status& cause) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->CancelCalls(cause);
}

Result<std::shared_ptr<DeviceStream>> ProcessRuntime::WrapStream(void* stream) {
  if (ForkGuard::InForkedChild()) return ForkGuard::ForkedChildError();
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime == nullptr) return NotInitialized();
  return runtime->WrapStream(stream);
}

void ProcessRuntime::MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->MarkStep(step, samples, input_nanoseconds);
}

void ProcessRuntime::PauseRecord(bool paused) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->PauseRecord(paused);
}

void ProcessRuntime::Mark(const std::string& text) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->Mark(text);
}

void ProcessRuntime::NoteErrors(std::string note, std::string stall) {
  if (ForkGuard::InForkedChild()) return;
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  if (runtime != nullptr) runtime->NoteErrors(std::move(note), std::move(stall));
}

WarningBell::Heard ProcessRuntime::WaitForWarning(Duration limit) {
  if (ForkGuard::InForkedChild()) return WarningBell::Heard::kEnd;
  std::shared_ptr<WarningBell> bell;
  if (const std::shared_ptr<RankRuntime> runtime = impl_->Current()) bell = runtime->bell();
  return bell == nullptr ? WarningBell::Heard::kEnd : bell->Wait(limit);
}

std::vector<Hop> ProcessRuntime::TakeHops(bool go_on) {
  if (ForkGuard::InForkedChild()) return {};
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  return runtime == nullptr ? std::vector<Hop>() : runtime->TakeHops(go_on);
}

std::map<std::string, int64_t> ProcessRuntime::Counters() const {
  if (ForkGuard::InForkedChild()) return {};
  const std::shared_ptr<RankRuntime> runtime = impl_->Current();
  return runtime == nullptr ? std::map<std::string, int64_t>() : runtime->Counters();
}

}  // namespace tfring
