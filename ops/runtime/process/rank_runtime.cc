#include "ops/runtime/process/rank_runtime.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/process/call_notes.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/process/completions.h"
#include "ops/runtime/process/control_loop.h"
#include "ops/runtime/process/error_notes.h"
#include "ops/runtime/process/rank_runtime_parts.h"
#include "ops/runtime/process/run_table.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {
namespace {

// One for collectives and one for `done` callbacks, which both do either.
constexpr size_t kPoolThreads = 2;
// How long a thread that submits may spin for the other ranks: about as long as it takes to wake
// another.
constexpr Duration kCallerTime = kMillisecond / 20;
constexpr Duration kJoinLimit = 5 * kSecond;
// Left for a `done` that is running, even if the control thread used up kJoinLimit.
constexpr Duration kLastDoneLimit = kSecond / 2;
// Nobody waits for a `done` of an abandoned generation but its own threads.
constexpr Duration kAbandonedDoneLimit = 24 * 3600 * kSecond;

Status StartBackend(const RankRuntimeParts& parts, ThreadPool* pool, ControlLoop* loop) {
  SignalsBlocked for_its_threads;
  try {
    loop->SetBackend(parts.make_backend(loop->Sink(), pool));
    return OkStatus();
  } catch (const std::exception& error) {
    return Internal(std::string("cannot start the backend: ") + error.what());
  }
}

DataPath PathOf(const Request& request, const LocalCall& call) {
  if (call.stream == nullptr || !request.refusal.empty()) return DataPath::kCpu;
  return call.stream->RunsOnDevice(request.kind, request.dtype, request.op) ? DataPath::kDevice
                                                                            : DataPath::kStaged;
}

}  // namespace

// What the control thread uses. Shared with it, because it may outlive the RankRuntime if it does
// not end in time.
struct RankRuntime::Core {
  explicit Core(RankRuntimeParts* parts)
      : recorder(std::move(parts->recorder)),
        keep_record(parts->keep_record),
        table(recorder.get()),
        wrap_stream(std::move(parts->wrap_stream)) {}

  // After the backend has ended. False if a `done` has not returned by `deadline`.
  bool EndPool(TimePoint deadline) {
    const bool all_done = completions.Stop(deadline);
    pool.Join(all_done ? std::max(deadline, MonotonicNow() + kLastDoneLimit) : deadline);
    return all_done;
  }

  // After the threads that write to the record have ended.
  void EndRecord(const std::string& error) {
    if (recorder == nullptr) return;
    const bool failed = !error.empty() || !why_abandoned.ok();
    const bool broken = recorder->header().state == static_cast<int32_t>(RankState::kFailed);
    if (!why_abandoned.ok() && !broken) {
      recorder->Event(EventType::kAbort, why_abandoned.code(), 0, why_abandoned.message());
    }
    recorder->Event(EventType::kShutdown, StatusCode::kOk, 0, error);
    recorder->State(failed || broken ? RankState::kFailed : RankState::kLeft);
    if (!failed && !broken && !keep_record) recorder->RemoveFile();
  }

  const std::unique_ptr<Recorder> recorder;
  const bool keep_record;
  const std::shared_ptr<WarningEvent> warning_event = std::make_shared<WarningEvent>();
  CallTable table;
  RunTable runs;
  LayoutTexts layouts;
  ThreadPool pool;
  Completions completions{&pool};
  ErrorNotes notes;
  decltype(RankRuntimeParts::wrap_stream) wrap_stream;
  std::unique_ptr<ControlLoop> loop;

  // Who ends it, decided once: whoever calls Shutdown, or, for Abandon, the control thread.
  enum class Ender { kNobody, kShutdown, kControlThread };
  bool EndBy(Ender who) {
    Ender nobody = Ender::kNobody;
    return ender.compare_exchange_strong(nobody, who);
  }
  std::atomic<Ender> ender{Ender::kNobody};
  // Of Abandon: written before the control thread hears of it, and used by that alone.
  Status why_abandoned;
  std::function<void()> gone;
};

Result<std::unique_ptr<RankRuntime>> RankRuntime::Start(RankRuntimeParts parts) {
  auto core = std::make_shared<Core>(&parts);
  if (core->recorder != nullptr) core->recorder->Event(EventType::kInit, StatusCode::kOk, 0, "");
  std::unique_ptr<RankRuntime> runtime(new RankRuntime(core, parts));
  core->loop = std::make_unique<ControlLoop>(std::move(parts.engine), std::move(parts.control),
                                             &core->table, &core->runs, &core->completions,
                                             &core->notes, core->recorder.get());
  core->loop->SetWarningEvent(core->warning_event);
  TFRING_RETURN_IF_ERROR(core->pool.Start(kPoolThreads));
  Status started = StartBackend(parts, &core->pool, core->loop.get());
  if (started.ok()) {
    started = runtime->control_thread_.Start(
        "tfring-control", [core]() mutable { RunControlThread(std::move(core)); });
    if (!started.ok()) core->loop->DropBackend(started);
  }
  if (!started.ok()) {
    core->EndPool(MonotonicNow() + kJoinLimit);
    return started;
  }
  runtime->shut_down_ = false;
  return runtime;
}

void RankRuntime::RunControlThread(std::shared_ptr<Core> core) {
  core->loop->Run();
  if (core->ender != Core::Ender::kControlThread) return;
  core->EndPool(MonotonicNow() + kAbandonedDoneLimit);
  core->EndRecord("");
  const std::function<void()> gone = std::move(core->gone);
  core.reset();
  if (gone) gone();
}

RankRuntime::RankRuntime(std::shared_ptr<Core> core, const RankRuntimeParts& parts)
    : rank_(parts.engine.rank),
      generation_(parts.generation),
      core_(std::move(core)),
      shut_down_(true) {}

RankRuntime::~RankRuntime() { Shutdown(); }

// All checks that a call has to pass on its own rank.
Status RankRuntime::Admit(Request* request, LocalCall* call) {
  const CallMemory memory{call->buffers, call->allocate != nullptr};
  TFRING_RETURN_IF_ERROR(AdmitRequest(*core_->loop->process_sets(), rank_, &memory, request));
  request->path = PathOf(*request, *call);
  request->in_run = request->in_run || core_->runs.InRun(request->process_set);
  Result<uint64_t> attempt = core_->runs.Admit(call->run, request->process_set);
  if (!attempt.ok()) return attempt.status();
  if (request->refusal.empty()) core_->layouts.AddTo(request);
  return core_->table.Add(request, call, *attempt);
}

void RankRuntime::Enqueue(Request request, LocalCall call) {
  const Status admitted = Admit(&request, &call);
  if (admitted.ok()) return Submitted();
  core_->loop->NotifyWithdrawal();  // that a call is refused may be one
  if (call.done) call.done(admitted);
}

// In a lock the call may be the last that its batch waited for. Where all ranks come to a small
// batch at about the same time, this thread exchanges it itself and nobody has to be woken.
void RankRuntime::Submitted() {
  if (!core_->loop->locked()) return core_->loop->NotifySubmission();
  const std::shared_ptr<Core> core = core_;  // a `done` may end this object
  ThreadPool::CallerRuns caller(&core->pool);
  core->loop->NotifySubmission();
  caller.RunTasks(MonotonicNow() + kCallerTime);
}

void RankRuntime::BeginRun(uint64_t run, ProcessSetId process_set) {
  if (core_->runs.Begin(run, process_set)) core_->loop->NotifyWithdrawal();
}

void RankRuntime::EndRun(uint64_t run) { core_->runs.End(run); }

void RankRuntime::FailRun(uint64_t run, const Status& cause) {
  const bool whole = health()->error.ok();  // else the run fails because a rank is gone
  if (!core_->runs.Fail(run, cause)) return;
  core_->loop->NotifyWithdrawal();
  if (whole) ++failed_here_;
}

void RankRuntime::CancelCalls(const Status& cause) {
  if (core_->runs.Leave(core_->table.AttemptsInUse(), cause)) core_->loop->NotifyWithdrawal();
}

uint64_t RankRuntime::Attempt(ProcessSetId process_set) const {
  return core_->runs.Attempt(process_set);
}

uint64_t RankRuntime::failed_elsewhere() const { return core_->runs.left_for_others(); }

void RankRuntime::Shutdown(const std::string& error) {
  std::lock_guard<std::mutex> lock(shutdown_mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  if (!core_->EndBy(Core::Ender::kShutdown)) return;  // abandoned: it ends by itself
  core_->warning_event->Close();
  TimePoint deadline = MonotonicNow() + kJoinLimit;
  core_->table.CloseAdmission(
      Cancelled("rank " + std::to_string(rank_) + " has shut down: call init() again first"));
  core_->loop->RequestShutdown(error);
  int64_t seen = -1;
  while (!control_thread_.WaitFor(deadline) && core_->loop->Progresses(&seen)) {
    deadline = MonotonicNow() + kJoinLimit;
  }
  if (!control_thread_.Join(deadline)) {
    TFRING_LOG(kError) << "the control thread did not end within " << kJoinLimit / kSecond
                       << " s and is left behind; collectives that were running have no result";
  }
  if (!core_->EndPool(std::max(deadline, MonotonicNow() + kLastDoneLimit))) {
    TFRING_LOG(kError) << "a completion callback did not return within " << kJoinLimit / kSecond
                       << " s of the shutdown; its thread is left behind";
  }
  core_->EndRecord(error);
}

bool RankRuntime::Abandon(const Status& why, const Status& later, std::function<void()> gone) {
  core_->table.CloseAdmission(later);
  const bool ends_itself = core_->EndBy(Core::Ender::kControlThread);
  if (ends_itself) {
    core_->why_abandoned = why;
    core_->gone = std::move(gone);
  }
  core_->warning_event->Close();
  core_->loop->Abandon(why);
  return ends_itself;
}

std::shared_ptr<const GenerationHealth> RankRuntime::health() const {
  return core_->loop->health();
}

ProcessSetId RankRuntime::LastProcessSet() const {
  return core_->loop->process_sets()->NextId() - 1;
}

std::map<ProcessSetId, std::vector<Rank>> RankRuntime::AllProcessSets() const {
  return core_->loop->process_sets()->all();
}

Result<std::vector<Rank>> RankRuntime::Members(ProcessSetId id) const {
  const std::shared_ptr<const ProcessSets> sets = core_->loop->process_sets();
  const std::vector<Rank>* members = sets->Find(id);
  if (members == nullptr) return InvalidArgument(NoSuchSet(id));
  return *members;
}

Result<std::shared_ptr<DeviceStream>> RankRuntime::WrapStream(void* stream) const {
  if (core_->wrap_stream) return core_->wrap_stream(stream);
  return Unavailable("this runtime uses CPU memory only");
}

void RankRuntime::MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds) {
  if (core_->recorder != nullptr) core_->recorder->MarkStep(step, samples, input_nanoseconds);
}

void RankRuntime::MarkFit(const FitMark& fit) {
  if (core_->recorder != nullptr) core_->recorder->MarkFit(fit);
}

void RankRuntime::MarkMemory(const MemoryMark& memory) {
  if (core_->recorder != nullptr) core_->recorder->MarkMemory(memory);
}

void RankRuntime::PauseRecord(bool paused) {
  if (core_->recorder != nullptr) core_->recorder->Pause(paused);
}

void RankRuntime::Mark(const std::string& text) {
  if (core_->recorder != nullptr)
    core_->recorder->Event(EventType::kMark, StatusCode::kOk, 0, text);
}

void RankRuntime::NoteErrors(std::string note, std::string stall) {
  core_->notes.Set(std::move(note), std::move(stall));
}

std::shared_ptr<WarningEvent> RankRuntime::warning_event() const { return core_->warning_event; }

bool RankRuntime::InsideDone() const { return core_->completions.IsCurrent(); }

std::map<std::string, int64_t> RankRuntime::Counters() const {
  const ControlLoop::Counts counts = core_->loop->counts();
  std::map<std::string, int64_t> named = {
      {"bytes_sent", counts.bytes_sent},
      {"control_wakeups", counts.control_wakeups},
      {"data_wakeups", counts.data_wakeups},
      {"pool_wakeups", core_->pool.wakeups()},
      {"plans", counts.plans},
      {"collectives", counts.collectives},
      {"tensors", counts.tensors},
      {"forwarded", counts.forwarded},
      {"cache_hits", counts.cache_hits},
      {"frames_sent", counts.frames_sent},
      {"frames_received", counts.frames_received},
      {"heartbeats_sent", counts.heartbeats_sent},
      {"heartbeats_received", counts.heartbeats_received},
  };
  named.merge(core_->loop->lock_counts());
  return named;
}

}  // namespace tfring
