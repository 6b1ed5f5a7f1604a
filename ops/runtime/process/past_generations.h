#ifndef TFRING_OPS_RUNTIME_PROCESS_PAST_GENERATIONS_H_
#define TFRING_OPS_RUNTIME_PROCESS_PAST_GENERATIONS_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/process_runtime.h"

namespace tfring {

// What is left of the generations that have ended in this process: runs (executions of TensorFlow
// graphs) that began in one of them and are not over, so that the next generation can refuse their
// calls; the topologies that they had; how many abandoned ones still have threads. Thread-safe;
// lives as long as the process.
class PastGenerations {
 public:
  // Runs that a generation knew when it ended.
  void AddRuns(const std::vector<uint64_t>& runs);
  bool HasRun(uint64_t run) const;
  // FailedPrecondition for a call of this name if its run is one of them.
  Status Admit(uint64_t run, const std::string& name) const;
  // No call of the run comes any more. Whether it was one of them.
  bool EndRun(uint64_t run);

  // The same pointer for the same topology, so that many inits take no more memory than one. It
  // stays valid, because those who ask for their rank hold no lock.
  const Topology* Remember(const Topology& topology);

  // A generation was abandoned; Ended is called once when the last of its threads is about to end.
  void Abandoned();
  void Ended();
  int ending() const;
  // False if one has not ended by `deadline`.
  bool WaitUntilEnded(TimePoint deadline);

 private:
  mutable std::mutex mutex_;  // guards all but the number of runs
  std::condition_variable changed_;
  int ending_ = 0;
  std::unordered_set<uint64_t> runs_;
  std::deque<uint64_t> order_;  // of runs_, the oldest first; and of some that have ended
  std::vector<std::unique_ptr<const Topology>> topologies_;
  std::atomic<size_t> run_count_{0};  // of runs_, for a look without the lock
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_PAST_GENERATIONS_H_
