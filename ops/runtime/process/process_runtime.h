#ifndef TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_
#define TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/process/warning_bell.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/recorder/record_layout.h"

namespace tfring {

// What of a call stays on this rank, beside its Request. `buffers` has one element per shape of the
// Request. For kinds with allocates_output, `allocate` is called once per tensor with its final
// shape and returns the memory; not on the sender of a send/recv. `announce` may be empty; it is
// called before `done`, and only if a plan came, with the rows received from each member
// (alltoall), the rank that joined last (join) or the id (adding or removing a process set). Both
// run on the control thread and must not block. `done` is called exactly once, whatever happens, on
// a thread that the runtime does not need to make progress, with no lock held; it may call Enqueue.
//
// `run` is the execution of a TensorFlow graph that makes the call (its step id), or 0 for none, as
// in an eager call. See ProcessRuntime::FailRun. An eager op that TensorFlow runs as a graph of its
// own has a number, too.
//
// `stream`: the tensors are in device memory and belong to it; null: they are in host memory. Its
// RunsOnDevice gives the path of the Request, whatever that had before. With `early`, `done` is
// called with OK as soon as the device has all of the collective, if it runs there; the
// caller calls the stream's WaitForResults before it uses the results. A failure after that ends
// the calls that follow. `keeps` holds the memory of the buffers: it is released on a thread of the
// runtime when nothing uses that memory any more, which with `early` may be long after `done`.
//
// `compiled`: a program of XLA's makes the call, and its thread waits. For the record only.
struct LocalCall {
  uint64_t run = 0;
  std::vector<TensorBuffer> buffers;
  std::shared_ptr<DeviceStream> stream;
  bool early = false;
  bool compiled = false;
  std::shared_ptr<void> keeps;
  std::function<Result<void*>(int tensor, const Shape& shape)> allocate;
  std::function<void(const std::vector<int64_t>& values)> announce;
  std::function<void(const Status&)> done;
};

// Of the record of what this rank does: see recorder/recorder.h.
struct RecordOptions {
  bool enabled = true;
  bool keep = false;  // the file stays also after an end without an error
  std::string path;   // empty, or a file that cannot be made: in memory only
  std::string job;
  std::string boot;  // the same on processes with the same monotonic clock
};

struct Topology {
  Rank rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;

  bool operator==(const Topology& other) const {
    return rank == other.rank && size == other.size && local_rank == other.local_rank &&
           local_size == other.local_size && cross_rank == other.cross_rank &&
           cross_size == other.cross_size;
  }
};

// One life of the runtime in this process, and how it stands, or how it has ended.
struct GenerationState {
  enum class Phase {
    kUp,
    kBroken,  // a rank was lost or has left, or the runtime failed: not all ranks can meet any more
    kDown,    // it is over here, or there was none yet
  };
  uint64_t number = 0;  // 0: there was none yet
  Phase phase = Phase::kDown;
  Status error;                // why it is broken, or was when it ended; why it was abandoned
  std::vector<Rank> lost;      // ranks whose loss broke it, ascending
  std::vector<Rank> departed;  // other ranks that have left, ascending
  // How many steps have failed on this rank first, and how many because they failed on other ranks
  // or because ranks disagreed. Without those that ended because a rank was gone.
  uint64_t failed_here = 0;
  uint64_t failed_elsewhere = 0;
};

// Everything that init needs, found out by Python. Descriptors are connected, authenticated stream
// sockets; Init takes them over and closes them, also when it fails.
struct InitOptions {
  Topology topology;
  std::vector<std::string> hosts;      // host name by rank, size elements
  std::map<Rank, int> control_fds;     // rank 0: to everybody; others: to rank 0
  std::map<Rank, int> data_fds;        // to the connected data peers, the ring's at least
  std::map<Rank, int64_t> local_pids;  // process ids of the other ranks of this host
  // The keys of the seals that we send on a control connection and of those that we receive.
  std::map<Rank, std::pair<std::string, std::string>> control_keys;
  // Where not all are connected for data: see PeerAddresses. The descriptor is like the others.
  int data_listener = -1;
  std::vector<std::pair<std::string, int>> data_endpoints;
  std::string data_key;
  Config config;
  // With CPU_OPERATIONS=mpi: libraries and communicator, see MpiUse.
  std::string mpi_plugin;
  std::string mpi_module;
  int mpi_communicator = 0;
  double start_timeout_seconds = 60;  // for the peers to answer while Init runs
  uint64_t generation = 0;  // its number, higher than all before; 0: one more than the last
  uint64_t nonce = 0;       // see EngineOptions
  // The highest id that a process set has had on any of the ranks.
  ProcessSetId last_process_set = kGlobalProcessSet;
  RecordOptions record;
};

// The process-wide runtime: the only global object. Created on first use, never destroyed. Init and
// Shutdown may follow each other any number of times. Thread-safe.
class TFRING_EXPORT ProcessRuntime {
 public:
  static ProcessRuntime& Get();

  // FailedPrecondition if it is initialized already; InvalidArgument for the number of an earlier
  // generation. Does not wait for what is left of an abandoned generation.
  Status Init(InitOptions options);

  // Stops admission, lets plans that are running end, completes all else with Cancelled, says
  // goodbye to the peers, joins the threads. Does nothing when not initialized. `error` is the
  // exception with which this process ends, as "ValueError: bad", or "": the errors of the other
  // ranks name it.
  // Where a generation was abandoned it waits until that has ended, for 5 s at most.
  void Shutdown(const std::string& error = "");

  // Ends the generation of this number, 0 for the present one, at once: without a goodbye, and
  // without waiting for anything. Init may follow at once, which starts a new one. All calls end
  // exactly once: those that have no outcome with Unavailable that names the lost ranks, or with
  // Aborted and, if all ranks are there, `why`; those whose data is on its way as soon as the
  // runtime has let go of their buffers; later ones with FailedPrecondition. The old runtime ends
  // by itself and has no part in the new one: runs that began in it are refused there. A Shutdown
  // that is under way is cut short. Does nothing if no such generation is up. From any thread, also
  // in a `done`.
  void Abandon(const std::string& why, uint64_t generation = 0);

  // Of the present generation, or the last one. Before a call ends because a rank was lost or has
  // left, that is known here.
  GenerationState generation() const;

  // The highest id that a process set has had in this process, 0 if there was none.
  ProcessSetId last_process_set() const;

  // How many abandoned generations have not ended yet.
  int abandoned() const;

  bool initialized() const;

  // FailedPrecondition "call init() first" when not initialized. A forked child gets the numbers of
  // the rank that it was forked from; everything else is an error there.
  Result<Topology> topology() const;

  // The process sets that exist here and now, by id, with their ranks in ascending order; 0 is the
  // global one. Empty when not initialized.
  std::map<ProcessSetId, std::vector<Rank>> ProcessSets() const;
  // Of one of them. InvalidArgument for an unknown id.
  Result<std::vector<Rank>> Members(ProcessSetId id) const;

  // Waits for no other rank. During a lock of the schedule this thread may take a step of the
  // engine and then begin what follows: small collectives, and `done` of calls that have ended, of
  // this call or of others. It begins none of these once 50 us have passed, and a collective that
  // has not ended by then is left to other threads. All errors come through call.done. A call that
  // cannot be matched with those of other ranks (not initialized, no name, a name that is in flight
  // already, an unknown process set, this rank is not among the ranks of the call) ends alone,
  // possibly before Enqueue returns; any other wrong call ends on all ranks with InvalidArgument
  // once all have made it.
  void Enqueue(Request request, LocalCall call);

  // Runs: when an execution of a graph fails on this rank, the others must not wait for its
  // collectives, nor take those of its next execution for them. All four return at once and do
  // nothing when not initialized. `run` is not 0, and no two executions have the same.
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
  // The run of calls that do not know theirs: those of programs that XLA has compiled, which learn
  // nothing of the step that they are part of. 0: none, or several at a time. Then a call of a step
  // that has failed already is not refused, and belongs to the attempt that follows.
  void SetSurroundingRun(uint64_t run);
  uint64_t surrounding_run() const;
  // Sets it to none if it is still `run`.
  void ClearSurroundingRun(uint64_t run);
  // Is asked, when a call wants the surrounding run, whether that is over; then there is none.
  void SetSurroundingCheck(bool (*is_over)(uint64_t run));
  // After FailRun: blocks until no call that programs of the run have started uses memory that XLA
  // frees. Who starts such calls says how. False, at once, in a `done`: those calls need others.
  bool WaitForRun(uint64_t run) const;
  void SetRunWaiter(void (*wait)(uint64_t run));
  // This rank leaves the attempts of all process sets in which it has calls in flight: for Ctrl-C.
  void CancelCalls(const Status& cause);
  // In which attempt of the process set this rank is: how many have failed. After a failed step the
  // same on all members, once each of them has got its error. 0 when not initialized.
  uint64_t Attempt(ProcessSetId process_set) const;

  // For a stream of the framework (a CUstream), on the thread that enqueues to it: what a call on
  // tensors of its device hands over. Unavailable if the CUDA driver cannot be used.
  Result<std::shared_ptr<DeviceStream>> WrapStream(void* stream);

  // For the record. MarkStep: step number `step` begins, so many samples have been trained on, and
  // so many nanoseconds were spent in waiting for input, each since the start; negative: unknown.
  void MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds);
  // As FitMark says; for the record, too.
  void MarkFit(const FitMark& fit);
  void Mark(const std::string& text);
  // As Recorder::Pause.
  void PauseRecord(bool paused);
  // The messages of plans since the last call; noted from the first call to one without `go_on`.
  std::vector<Hop> TakeHops(bool go_on);

  // From now on errors that concern several ranks (they disagree, one is lost or has left, a stall
  // has lasted too long) end with `note`; before it those of stalls have `stall`. "": nothing.
  // Of the generation of this number; 0: of the present one.
  void NoteErrors(std::string note, std::string stall, uint64_t generation = 0);
  // Blocks until the runtime has something to warn of, a stall say, which it adds to `warnings` and
  // leaves to the caller (see WarningBell), or has learnt that nothing runs any more,
  // a rank being lost, for `limit` at most, or until it is shut down; kEnd also where it does not
  // run. `generation` as in NoteErrors: kEnd if that is over.
  WarningBell::Heard WaitForWarning(Duration limit, uint64_t generation,
                                    std::vector<std::string>* warnings);

  // "bytes_sent", "control_wakeups", "data_wakeups", "crew_wakeups" ("data": while a
  // collective ran), "plans", "collectives" (calls that were part of a plan), "tensors",
  // "forwarded" (outputs in place of their inputs), "cache_hits" (requests sent as a number),
  // "frames_sent" and "frames_received" (control frames, without heartbeats), "heartbeats_sent" and
  // "heartbeats_received", "locks" (of the schedule), "lock_rounds" (run in them), "unlocks_CAUSE"
  // (by cause), since Init. Empty when not initialized.
  std::map<std::string, int64_t> Counters() const;

 private:
  ProcessRuntime();
  ~ProcessRuntime() = delete;
  void ShutDownPresent(const std::string& error);
  struct Impl;
  Impl* impl_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_
