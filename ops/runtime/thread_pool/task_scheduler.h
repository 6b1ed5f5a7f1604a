#ifndef TFRING_OPS_RUNTIME_THREAD_POOL_TASK_SCHEDULER_H_
#define TFRING_OPS_RUNTIME_THREAD_POOL_TASK_SCHEDULER_H_

#include <cstddef>
#include <vector>

namespace tfring {

// Decides which thread of a pool runs which task, and whom to wake. Tasks are in order of urgency,
// and one thread at a time runs a task. A thread that has run one looks for the next; a sleeping
// thread is woken only for work that no thread is about to find. The ThreadPool has the threads and
// the mutex. With as many threads as tasks none ever waits for another.
class TaskScheduler {
 public:
  static constexpr size_t kNothing = ~size_t{0};

  // A new task, less urgent than those before it.
  size_t Open();

  // The task has work. False, and nothing changes, if it is closed.
  bool Add(size_t task);

  // The most urgent task with work that no thread runs; the caller runs it until Ran. kNothing if
  // there is none.
  size_t Take();
  // The caller has run the task; `more`: work is left.
  void Ran(size_t task, bool more);

  // Whether to wake a sleeping thread, which then counts as woken. Ask after Take, and after Add
  // unless the caller is about to look for work itself.
  bool Wakes();

  // A thread found nothing and sleeps; a thread woke, for whatever reason.
  void Sleeps() { ++sleeping_; }
  void Woke();

  // Closes the task once it has no work and nobody runs it.
  void Close(size_t task) { tasks_[task].closing = true; }
  bool Closed(size_t task) const;
  bool AllClosed() const;

 private:
  struct Task {
    bool work = false;
    bool running = false;
    bool closing = false;
  };
  std::vector<Task> tasks_;
  size_t sleeping_ = 0;
  size_t woken_ = 0;  // of the sleeping ones: those that were woken and have not run yet
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_THREAD_POOL_TASK_SCHEDULER_H_
