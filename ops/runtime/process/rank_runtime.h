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

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/device_stream.h"
#include "ops/runtime/process/local_call.h"
#include "ops/runtime/process/warning_event.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/recorder/record_layout.h"
#include "ops/runtime/thread_pool/worker_thread.h"

namespace tfring {

struct GenerationHealth;
struct RankRuntimeParts;

// One rank of one generation: call table, control thread, backend and thread pool. ProcessRuntime
// begins and ends the one of a process; tests have several. Every call that Enqueue takes ends
// exactly once, even if the runtime shuts down meanwhile. Thread-safe.
class TFRING_EXPORT RankRuntime {
 public:
  // Starts the threads. Internal if the system refuses one.
  static Result<std::unique_ptr<RankRuntime>> Start(RankRuntimeParts parts);
  ~RankRuntime();

  // The number of the generation.
  uint64_t generation() const { return generation_; }
  Rank rank() const { return rank_; }

  // The present process sets by id, with their ranks in ascending order; 0 is the global one.
  std::map<ProcessSetId, std::vector<Rank>> AllProcessSets() const;
  // The ranks of one process set. InvalidArgument for an unknown id.
  Result<std::vector<Rank>> Members(ProcessSetId id) const;
  // The highest id of a process set so far, earlier generations included.
  ProcessSetId LastProcessSet() const;

  // Never waits for other ranks. All errors come through call.done. A call that cannot match those
  // of other ranks (the generation is over; no name; the name is in flight; the process set is
  // unknown or lacks this rank) ends alone, perhaps before Enqueue returns. Any other wrong call
  // ends with InvalidArgument on all ranks once all have made it.
  //
  // During a lock of the schedule this thread may take a step of the engine and run what follows:
  // small collectives and the `done` of any call. It starts none of these after 50 us and leaves a
  // collective that takes longer to other threads.
  void Enqueue(Request request, LocalCall call);

  // A run is an execution of a graph. When it fails on this rank, the other ranks must not wait for
  // its collectives, nor match them with those of the next execution. These functions return at
  // once. `run` is not 0 and no two executions have the same number.
  //
  // BeginRun: the run may use the process set, in the set's present attempt. It may be called
  // again, and Enqueue calls it for a run that is new to the set. Until EndRun, a failed call of
  // this rank in the set counts as a failure of the run.
  void BeginRun(uint64_t run, ProcessSetId process_set);
  // The run makes no more calls. Call it for each run, also after FailRun.
  void EndRun(uint64_t run);
  // The run failed on this rank; `cause` is not OK and its text goes to all ranks. In each process
  // set of the run this rank leaves the attempt in which the run began, if it still is in it. On
  // all members, calls of that attempt without a plan, present and future, end with Aborted that
  // names this rank and the cause; calls with a plan run. Calls of this rank for a later run, or
  // without a run, belong to the next attempt.
  void FailRun(uint64_t run, const Status& cause);
  // For Ctrl-C: this rank leaves the attempts of all process sets in which it has calls in flight.
  void CancelCalls(const Status& cause);
  // The number of the set's present attempt: how many have failed. After a failed step it is the
  // same on all members once each has got its error.
  uint64_t Attempt(ProcessSetId process_set) const;

  // See GenerationState.
  uint64_t failed_here() const { return failed_here_; }
  uint64_t failed_elsewhere() const;

  // Wraps a stream of the framework (a CUstream) for a call on tensors of its device. Call it on
  // the thread that enqueues to the stream. Unavailable if the CUDA driver cannot be used.
  Result<std::shared_ptr<DeviceStream>> WrapStream(void* stream) const;

  // For the record: step `step` begins. `samples` trained on and time spent waiting for input count
  // from the start; negative: unknown.
  void MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds);
  // For the record: see FitMark.
  void MarkFit(const FitMark& fit);
  // For the record: see MemoryMark.
  void MarkMemory(const MemoryMark& memory);
  void Mark(const std::string& text);
  // See Recorder::Pause.
  void PauseRecord(bool paused);

  // Appends `note` to errors that concern several ranks: a disagreement, a lost rank, a stall.
  // Errors of stalls have `stall` before it. "": nothing.
  void NoteErrors(std::string note, std::string stall);
  // Signalled when the runtime warns or its generation breaks; closed when Shutdown begins.
  std::shared_ptr<WarningEvent> warning_event() const;

  // Counters since the start: "bytes_sent"; "control_wakeups", "pool_wakeups" and "data_wakeups"
  // (within a collective); "plans", "collectives" (calls of plans) and "tensors"; "forwarded"
  // (outputs in place of their inputs); "cache_hits" (requests sent as a number); "frames_sent" and
  // "frames_received" (control frames without heartbeats), "heartbeats_sent" and
  // "heartbeats_received"; "locks" of the schedule, "lock_rounds" in them, "unlocks_CAUSE" by
  // cause.
  std::map<std::string, int64_t> Counters() const;

  // Refuses new calls, lets running plans end as long as data moves, cancels the rest, says goodbye
  // and joins the threads. If nothing moves this takes at most 10 s; with plans on devices also the
  // heartbeat timeout; on rank 0 up to 30 s more if other ranks have process sets without it. A
  // second call waits for the first. Not from a `done`. `error`: see ProcessRuntime::Shutdown.
  void Shutdown(const std::string& error = "");

  // Ends the generation here without a goodbye and returns at once. Calls end with `why`, later
  // ones with `later`; a call whose data is on its way ends when its buffers are free. The threads
  // end by themselves, perhaps after this object, and one of them then calls `gone`. False if that
  // will not happen, because Shutdown (which now waits for less) or Abandon came first. From any
  // thread, also in a `done`.
  bool Abandon(const Status& why, const Status& later, std::function<void()> gone = nullptr);
  // What is known of the end of the generation.
  std::shared_ptr<const GenerationHealth> health() const;
  // True inside a `done`.
  bool InsideDone() const;

 private:
  struct Core;
  static void RunControlThread(std::shared_ptr<Core> core);
  RankRuntime(std::shared_ptr<Core> core, const RankRuntimeParts& parts);
  Status Admit(Request* request, LocalCall* call);
  void Submitted();

  const Rank rank_;
  const uint64_t generation_;
  const std::shared_ptr<Core> core_;  // shared with the control thread
  WorkerThread control_thread_;
  std::mutex shutdown_mutex_;  // held during Shutdown; guards shut_down_
  bool shut_down_ = false;
  std::atomic<uint64_t> failed_here_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_H_
