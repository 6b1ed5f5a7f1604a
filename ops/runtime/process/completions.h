#ifndef TFRING_OPS_RUNTIME_PROCESS_COMPLETIONS_H_
#define TFRING_OPS_RUNTIME_PROCESS_COMPLETIONS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/thread_pool/thread_pool.h"

namespace tfring {

// The task of the thread pool that runs `done` callbacks, in the order of Push and one at a time,
// and destroys the calls. A `done` may run framework code for long and may call Enqueue, so nothing
// in the runtime waits for it. Push is thread-safe; Stop is for the owner. Lives for one
// generation.
class Completions {
 public:
  // `pool` must outlive this and have no task yet: this one is the most urgent.
  explicit Completions(ThreadPool* pool);

  // Takes the calls; their `done` runs soon, or at once on this thread after Stop and if the pool
  // has no threads.
  void Push(std::vector<FinishedCall> calls);

  // Waits until all that was pushed has run. False if a `done` has not returned by `deadline`; the
  // rest then runs after it.
  bool Stop(TimePoint deadline);

  // Whether the calling thread is in one of these callbacks; in one of any generation.
  bool IsCurrent() const;
  static bool IsAny();

 private:
  struct Queue;

  const std::shared_ptr<Queue> queue_;  // shared with the pool's threads
  ThreadPool* const pool_;
  const size_t task_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_COMPLETIONS_H_
