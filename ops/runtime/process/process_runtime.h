#ifndef TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_
#define TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// One call as the framework glue hands it over. `buffers` has one element per shape of the Request.
// Where AllocatesOutput, `allocate` is called once per tensor with its final shape and returns the
// memory; not on the source of a send. `announce` may be empty; it is told, before `done` and only
// if a plan came: the rows received from each member (alltoall), the rank that joined last (join),
// the id (adding a process set). Both run on the control thread and must not block. `done` is
// called exactly once, whatever happens, on a thread that the runtime does not need to make
// progress, with no lock held; it may call Enqueue.
struct LocalCall {
  std::vector<TensorBuffer> buffers;
  std::function<Result<void*>(int tensor, const Shape& shape)> allocate;
  std::function<void(const std::vector<int64_t>& values)> announce;
  std::function<void(const Status&)> done;
};

struct Topology {
  Rank rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
};

// Everything that init needs, found out by Python. Descriptors are connected, authenticated stream
// sockets; Init takes them over and closes them, also when it fails.
struct InitOptions {
  Topology topology;
  std::vector<std::string> hosts;             // host name by rank, size elements
  std::map<Rank, int> control_fds;            // rank 0: to everybody; others: to rank 0
  std::map<Rank, int> data_fds;               // to the connected data peers
  std::map<Rank, int64_t> local_pids;         // ranks of this host, besides ourselves: process id
  std::map<std::string, std::string> config;  // see base/config.h
  double start_timeout_seconds = 60;          // for the peers to answer while Init runs
};

// The process-wide runtime: the only global. Created on first use, never destroyed. Init, Shutdown
// and init again may follow each other any number of times. Thread-safe.
class TFRING_EXPORT ProcessRuntime {
 public:
  static ProcessRuntime& Get();

  // FailedPrecondition if it is initialized already.
  Status Init(InitOptions options);

  // Stops admission, lets plans that are running end, completes all else with Cancelled, says
  // goodbye to the peers, joins the threads. Does nothing when not initialized.
  void Shutdown();

  bool initialized() const;

  // FailedPrecondition "call init() first" when not initialized.
  Result<Topology> topology() const;

  // The process sets that exist here and now, by id, with their ranks in ascending order; 0 is the
  // global one. Empty when not initialized.
  std::map<ProcessSetId, std::vector<Rank>> ProcessSets() const;
  // Of one of them. InvalidArgument for an unknown id.
  Result<std::vector<Rank>> Members(ProcessSetId id) const;

  // Never blocks. Refusals come through entry.done as well: those that no other rank can hear of
  // (not initialized, no name, duplicate name in flight, unknown process set, this rank is not
  // among the ranks of the call) possibly before Enqueue returns; any other bad call ends on all
  // ranks with InvalidArgument once all have made it.
  void Enqueue(Request request, LocalCall entry);

  // "bytes_sent", "control_wakeups", "data_wakeups", "completion_wakeups", "plans", "collectives"
  // (calls that were part of a plan), "tensors", "forwarded" (outputs in place of their inputs),
  // "cache_hits" (requests sent as a number), since Init. Empty when not initialized.
  std::map<std::string, int64_t> Counters() const;

 private:
  ProcessRuntime();
  ~ProcessRuntime() = delete;
  struct Impl;
  Impl* impl_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_PROCESS_RUNTIME_H_
