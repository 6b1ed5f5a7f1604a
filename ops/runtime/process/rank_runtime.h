#ifndef TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_H_
#define TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/crew/crew.h"
#include "ops/runtime/crew/worker_thread.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/warning_bell.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/recorder/recorder.h"

namespace tfring {

// What a RankRuntime is made of; the factory chooses, tests choose otherwise.
struct RankRuntimeParts {
  EngineOptions engine;
  std::unique_ptr<ControlTransport> control;
  // The crew outlives the backend, which may have one duty of it.
  std::function<std::unique_ptr<CollectiveBackend>(CompletionSink, Crew*)> make_backend;
  std::unique_ptr<Recorder> recorder;  // null: nothing is recorded
  bool keep_record = false;            // also after an end without an error
  // As ProcessRuntime::WrapStream; empty where only host memory is used.
  std::function<Result<std::shared_ptr<DeviceStream>>(void* stream)> wrap_stream;
};

// One rank at work: call table, control thread, backend and a crew of threads. A process has one,
// owned by ProcessRuntime; tests have several. Every call that Enqueue takes ends exactly once,
// also when the runtime is shut down with calls in flight. Thread-safe. Lives for one generation.
class RankRuntime {
 public:
  // Starts the threads. Internal if the system refuses one.
  static Result<std::unique_ptr<RankRuntime>> Start(RankRuntimeParts parts);
  ~RankRuntime();

  // As ProcessRuntime::Enqueue.
  void Enqueue(Request request, LocalCall call);

  // As ProcessRuntime.
  void BeginRun(uint64_t run, ProcessSetId process_set);
  void EndRun(uint64_t run);
  void FailRun(uint64_t run, const Status& cause);
  void CancelCalls(const Status& cause);
  uint64_t Attempt(ProcessSetId process_set) const;
  // See GenerationState.
  uint64_t failed_here() const { return failed_here_; }
  uint64_t failed_elsewhere() const;

  // Refuses new calls, says goodbye, waits for running plans as long as data moves, cancels all
  // else and joins the threads. Where nothing moves that takes 10 s at most; with plans on devices
  // the timeout of heartbeats more, and on rank 0 up to 30 s more where others have process sets
  // without it. A second call waits for the first. Not from a
  // `done`. `error` as in ProcessRuntime.
  void Shutdown(const std::string& error = "");

  // Ends the generation here without a goodbye, and returns at once. Calls end with `why`, those
  // that come later with `later`; if they are on their way to the other ranks, as soon as their
  // buffers are not used any more. The threads end by themselves, also after the end of this
  // object; then `gone` is called, on one of them. False if it will not be: Shutdown, which waits
  // for less now, or Abandon was called before. From anywhere, also a `done`.
  bool Abandon(const Status& why, const Status& later, std::function<void()> gone = nullptr);
  Rank rank() const { return rank_; }
  // What is known of the end of the generation.
  std::shared_ptr<const GenerationHealth> health() const;
  // The highest id that a process set has had, also in generations before.
  ProcessSetId LastProcessSet() const;
  // Those that have begun here and are not over.
  std::vector<uint64_t> Runs() const;

  // As ProcessRuntime.
  std::map<ProcessSetId, std::vector<Rank>> AllProcessSets() const;
  Result<std::vector<Rank>> Members(ProcessSetId id) const;

  // As ProcessRuntime.
  Result<std::shared_ptr<DeviceStream>> WrapStream(void* stream) const;
  void MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds);
  void MarkFit(const FitMark& fit);
  void Mark(const std::string& text);
  void PauseRecord(bool paused);
  std::vector<Hop> TakeHops(bool go_on);
  void NoteErrors(std::string note, std::string stall);

  // Rung when the runtime has warned or nothing runs any more, closed when Shutdown begins.
  std::shared_ptr<WarningBell> bell() const;

  // True inside a `done`.
  bool InsideDone() const;

  std::map<std::string, int64_t> Counters() const;

 private:
  struct Core;
  static void RunControlThread(std::shared_ptr<Core> core);
  RankRuntime(std::shared_ptr<Core> core, Rank rank);
  Status Admit(Request* request, LocalCall* call);
  void Submitted();

  const Rank rank_;
  const std::shared_ptr<Core> core_;  // shared with the control thread
  WorkerThread control_thread_;
  std::mutex shutdown_mutex_;  // held during Shutdown; guards shut_down_
  bool shut_down_ = false;
  std::atomic<uint64_t> failed_here_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_H_
