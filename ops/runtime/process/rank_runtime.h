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

// One rank at work, for one generation: call table, control thread, backend and a pool of threads.
// A process has one, which ProcessRuntime begins and ends; tests have several. Every call that
// Enqueue takes ends exactly once, also when the runtime is shut down with calls in flight.
// Thread-safe.
class TFRING_EXPORT RankRuntime {
 public:
  // Starts the threads. Internal if the system refuses one.
  static Result<std::unique_ptr<RankRuntime>> Start(RankRuntimeParts parts);
  ~RankRuntime();

  // The number of the generation.
  uint64_t generation() const { return generation_; }
  Rank rank() const { return rank_; }

  // The process sets that exist here and now, by id, with their ranks in ascending order; 0 is the
  // global one.
  std::map<ProcessSetId, std::vector<Rank>> AllProcessSets() const;
  // Of one of them. InvalidArgument for an unknown id.
  Result<std::vector<Rank>> Members(ProcessSetId id) const;
  // The highest id that a process set has had, also in generations before.
  ProcessSetId LastProcessSet() const;

  // Waits for no other rank. During a lock of the schedule this thread may take a step of the
  // engine and then begin what follows: small collectives, and `done` of calls that have ended, of
  // this call or of others. It begins none of these once 50 us have passed, and a collective that
  // has not ended by then is left to other threads. All errors come through call.done. A call that
  // cannot be matched with those of other ranks (the generation is over, no name, a name that is in
  // flight already, an unknown process set, this rank is not among the ranks of the call) ends
  // alone, possibly before Enqueue returns; any other wrong call ends on all ranks with
  // InvalidArgument once all have made it.
  void Enqueue(Request request, LocalCall call);

  // Runs: when an execution of a graph fails on this rank, the others must not wait for its
  // collectives, nor take those of its next execution for them. All return at once. `run` is not 0,
  // and no two executions have the same.
  //
  // BeginRun: the run may use the process set. It belongs to the attempt of the set in which this
  // rank is now. Any number of times; Enqueue does it too, for a run that is new to the set. Until
  // the run ends, it counts as failing with every call of this rank in the set.
  void BeginRun(uint64_t run, ProcessSetId process_set);
  // No call of the run comes any more. To be called for each run, also after FailRun.
  void EndRun(uint64_t run);
  // The run has failed on this rank, for this reason (not ok; its text goes to all ranks). This
  // rank leaves the attempt, of each process set of the run, that the run began in, unless it has
  // left it already. On every member of the set the calls of this attempt that have no plan yet,
  // and those that are still to come, end with Aborted that names this rank and the cause; what has
  // a plan runs. What this rank enqueues for a later run, or without a run, belongs to the next
  // attempt.
  void FailRun(uint64_t run, const Status& cause);
  // This rank leaves the attempts of all process sets in which it has calls in flight: for Ctrl-C.
  void CancelCalls(const Status& cause);
  // In which attempt of the process set this rank is: how many have failed. After a failed step the
  // same on all members, once each of them has got its error.
  uint64_t Attempt(ProcessSetId process_set) const;

  // See GenerationState.
  uint64_t failed_here() const { return failed_here_; }
  uint64_t failed_elsewhere() const;

  // For a stream of the framework (a CUstream), on the thread that enqueues to it: what a call on
  // tensors of its device hands over. Unavailable if the CUDA driver cannot be used.
  Result<std::shared_ptr<DeviceStream>> WrapStream(void* stream) const;

  // For the record. MarkStep: step number `step` begins, so many samples have been trained on, and
  // so many nanoseconds were spent in waiting for input, each since the start; negative: unknown.
  void MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds);
  // As FitMark says; for the record, too.
  void MarkFit(const FitMark& fit);
  void Mark(const std::string& text);
  // As Recorder::Pause.
  void PauseRecord(bool paused);

  // From now on errors that concern several ranks (they disagree, one is lost or has left, a stall
  // has lasted too long) end with `note`; before it those of stalls have `stall`. "": nothing.
  void NoteErrors(std::string note, std::string stall);
  // Rung when the runtime has warned or nothing runs any more, closed when Shutdown begins.
  std::shared_ptr<WarningEvent> warning_event() const;

  // "bytes_sent", "control_wakeups", "data_wakeups", "pool_wakeups" ("data": while a
  // collective ran), "plans", "collectives" (calls that were part of a plan), "tensors",
  // "forwarded" (outputs in place of their inputs), "cache_hits" (requests sent as a number),
  // "frames_sent" and "frames_received" (control frames, without heartbeats), "heartbeats_sent" and
  // "heartbeats_received", "locks" (of the schedule), "lock_rounds" (run in them), "unlocks_CAUSE"
  // (by cause), since the start.
  std::map<std::string, int64_t> Counters() const;

  // Refuses new calls, lets plans that are running end as long as data moves, cancels all else,
  // says goodbye and joins the threads. Where nothing moves that takes 10 s at most; with plans on
  // devices the timeout of heartbeats more, and on rank 0 up to 30 s more where others have process
  // sets without it. A second call waits for the first. Not from a `done`. `error`: see
  // ProcessRuntime::Shutdown.
  void Shutdown(const std::string& error = "");

  // Ends the generation here without a goodbye, and returns at once. Calls end with `why`, those
  // that come later with `later`; if they are on their way to the other ranks, as soon as their
  // buffers are not used any more. The threads end by themselves, also after the end of this
  // object; then `gone` is called, on one of them. False if it will not be: Shutdown, which waits
  // for less now, or Abandon was called before. From anywhere, also a `done`.
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
