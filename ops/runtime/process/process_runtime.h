#ifndef TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_
#define TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/rank_runtime.h"

namespace tfring {

// The record of what this rank does: see recorder/recorder.h.
struct RecordOptions {
  bool enabled = true;
  bool keep = false;  // keep the file after an end without an error
  std::string path;   // in memory only if empty, or if the file cannot be made
  std::string job;
  std::string boot;  // equal for processes with the same monotonic clock
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

// The state of the current generation of this process, or the end of the last one.
struct GenerationState {
  enum class Phase {
    kUp,
    kBroken,  // a rank was lost or has left, or the runtime failed: not all ranks can meet
    kDown,    // it is over here, or there was none yet
  };
  uint64_t number = 0;  // 0: there was none yet
  Phase phase = Phase::kDown;
  Status error;                // why it is broken, or was when it ended; why it was abandoned
  std::vector<Rank> lost;      // ranks whose loss broke it, ascending
  std::vector<Rank> departed;  // other ranks that have left, ascending
  // Steps that failed on this rank first, and steps that failed on others or because ranks
  // disagreed. Steps that ended because a rank was gone do not count.
  uint64_t failed_here = 0;
  uint64_t failed_elsewhere = 0;
};

// What Python finds out for init. Descriptors are connected, authenticated stream sockets; Init
// owns and closes them, even if it fails.
struct InitOptions {
  Topology topology;
  std::vector<std::string> hosts;      // host name by rank, size elements
  std::map<Rank, int> control_fds;     // rank 0: to everybody; others: to rank 0
  std::map<Rank, int> data_fds;        // to the connected data peers, the ring's at least
  std::map<Rank, int64_t> local_pids;  // process ids of the other ranks of this host
  // By rank, the MAC keys of a control connection: for sending and for receiving.
  std::map<Rank, std::pair<std::string, std::string>> control_keys;
  // If not all are connected for data: see PeerAddresses.
  int data_listener = -1;
  std::vector<std::pair<std::string, int>> data_endpoints;
  std::string data_key;
  Config config;
  // With CPU_OPERATIONS=mpi: libraries and communicator, see MpiUse.
  std::string mpi_plugin;
  std::string mpi_module;
  int mpi_communicator = 0;
  double start_timeout_seconds = 60;  // for answers of peers during Init
  uint64_t generation = 0;            // higher than all before; 0: one more than the last
  uint64_t nonce = 0;                 // see EngineOptions
  // The highest id that a process set has had on any rank.
  ProcessSetId last_process_set = kGlobalProcessSet;
  RecordOptions record;
};

// Begins and ends the generations of this process and has the RankRuntime of the current one. The
// only global object: created on first use, never destroyed. Init and Shutdown may follow each
// other any number of times. Thread-safe.
class TFRING_EXPORT ProcessRuntime {
 public:
  static ProcessRuntime& Get();

  // FailedPrecondition if it is initialized; InvalidArgument for the number of an earlier
  // generation. Does not wait for the end of an abandoned generation.
  Status Init(InitOptions options);

  // Stops admission, lets running plans end, completes the rest with Cancelled, says goodbye to the
  // peers and joins the threads. Does nothing if it is not initialized. `error` is the exception
  // that ends this process, such as "ValueError: bad", for the errors of the other ranks, or "".
  // Waits at most 5 s for the end of an abandoned generation.
  void Shutdown(const std::string& error = "");

  // Ends the generation of this number (0: the current one) without a goodbye and returns at once.
  // Init may follow at once. All calls end exactly once: those without a result with Unavailable
  // that names the lost ranks, or with Aborted and `why` if no rank is lost; later calls with
  // FailedPrecondition. A call whose data is on its way ends when its buffers are free. The old
  // runtime ends by itself and takes no part in the new one. Cuts a Shutdown short. Does nothing if
  // no such generation is up. From any thread, also in a `done`.
  void Abandon(const std::string& why, uint64_t generation = 0);

  // Of the current generation, or the last one. Shows a lost or departed rank before any call ends
  // because of it.
  GenerationState generation() const;

  // The highest id that a process set has had in this process, 0 if there was none.
  ProcessSetId last_process_set() const;

  // How many abandoned generations have not ended yet.
  int abandoned() const;

  bool initialized() const;

  // FailedPrecondition "call init() first" when not initialized. A forked child gets the numbers of
  // the rank that it was forked from; everything else is an error there.
  Result<Topology> topology() const;

  // Returns the runtime of the current generation, or of `generation` if that is not 0 and is the
  // current one. FailedPrecondition says why there is none (init was not called, shutdown was
  // called, this is a forked child). All code that needs the runtime gets it here. After the end of
  // the generation a kept runtime refuses calls.
  Result<std::shared_ptr<RankRuntime>> Current(uint64_t generation = 0) const;

 private:
  ProcessRuntime();
  ~ProcessRuntime() = delete;
  void ShutDownPresent(const std::string& error);
  struct Impl;
  Impl* impl_;
};

// RankRuntime::Enqueue in the generation of this number, 0 for the current one. If Current has no
// runtime, the call ends with its error.
TFRING_EXPORT void EnqueueIn(uint64_t generation, Request request, LocalCall call);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_
