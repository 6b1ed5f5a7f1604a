#ifndef TFRING_OPS_RUNTIME_PROCESS_COMPLETION_THREAD_H_
#define TFRING_OPS_RUNTIME_PROCESS_COMPLETION_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/process/worker_thread.h"

namespace tfring {

// Runs `done` callbacks, in the order in which calls finished, and destroys the calls, on a thread
// of its own: they may run framework code for a long time and may call Enqueue, so no other thread
// of the runtime may wait for them. Push is thread-safe; Start and Stop are for the owner. Lives
// for one generation.
class CompletionThread {
 public:
  CompletionThread();

  Status Start();

  // Takes the calls; their `done` runs soon, or at once on the caller's thread after Stop.
  void Push(std::vector<FinishedCall> calls);

  // Runs what was pushed, then ends the thread. False if a `done` has not returned by `deadline`;
  // the thread then runs the rest on its own and ends.
  bool Stop(TimePoint deadline);

  bool IsCurrent() const { return thread_.IsCurrent(); }
  // Whether the caller is such a thread, of any generation.
  static bool IsAny();
  int64_t wakeups() const;

 private:
  struct Queue;
  static void Run(Queue* queue);

  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this object
  WorkerThread thread_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_COMPLETION_THREAD_H_
