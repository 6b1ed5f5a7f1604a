#ifndef TFRING_OPS_RUNTIME_THREAD_POOL_THREAD_POOL_H_
#define TFRING_OPS_RUNTIME_THREAD_POOL_THREAD_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/thread_pool/worker_thread.h"

namespace tfring {

// Threads that run a few long-lived tasks; a task opened first is more urgent. One thread at a time
// runs a task, and what it did happens before what the next thread does for the same task. A
// thread that ends one task looks for another before it sleeps, so work that it added wakes nobody.
// Thread-safe, but Start and Join are for the owner.
class ThreadPool {
 public:
  // When a task adds work to other tasks. kLast: only at its end, so its own thread will find that
  // work and no other thread is woken.
  enum class Adds : uint8_t { kLast, kAnyTime };

  ThreadPool();
  // Does not wait: the threads end after what they are running.
  ~ThreadPool();

  // One thread per task. Internal if the system refuses a thread; then there is none.
  Status Start(size_t threads);

  // `work` does some or all of the work that there is, perhaps none, and returns whether more is
  // left. It must not wait beyond `until`, which is kNever on the pool's threads, and must not use
  // this object, which may be gone.
  using Work = std::function<bool(TimePoint until)>;
  size_t Open(Adds adds, Work work);

  // The task has work. False if nobody will do it: the task is closed, or there are no threads.
  bool Add(size_t task);

  // Waits until the task has no work left and closes it. False if that takes beyond `deadline`: the
  // task then closes later by itself. Not on a thread of this pool.
  bool Close(size_t task, TimePoint deadline = kNever);

  // Ends the threads when every task is closed. False if they have not ended by `deadline`; they
  // then run on alone. Not on a thread of this pool.
  bool Join(TimePoint deadline = kNever);

  // For a thread that adds work and then runs it itself: until RunTasks, Add wakes nobody for this
  // thread. RunTasks runs what no other thread is running, starts nothing after `until` but its
  // first task, and leaves the rest to the pool. Does nothing if this thread already has one, but
  // in a task that may add work at any time.
  class CallerRuns {
   public:
    explicit CallerRuns(ThreadPool* pool);
    void RunTasks(TimePoint until);
    // Only after RunTasks, or if nothing was added.
    ~CallerRuns();

   private:
    ThreadPool* const pool_;  // null: does nothing
  };

  // How often one of the threads woke from sleep.
  int64_t wakeups() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // with the threads, which may outlive this object
  std::vector<std::unique_ptr<WorkerThread>> threads_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_THREAD_POOL_THREAD_POOL_H_
