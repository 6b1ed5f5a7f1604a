#include "ops/runtime/thread_pool/thread_pool.h"

#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/thread_pool/task_scheduler.h"

namespace tfring {

struct ThreadPool::Shared {
  struct Task {
    Adds adds;
    Work work;
  };
  void Run();
  // Runs a task that was taken; returns whether more of it is left. `lock` holds `mutex`.
  bool RunTask(size_t number, TimePoint until, std::unique_lock<std::mutex>* lock);

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::condition_variable closed;
  TaskScheduler scheduler;
  std::deque<Task> tasks;  // a deque, because references to them must stay valid
  bool running = false;    // Start has started all threads
  bool ending = false;
  bool refused = false;  // Start has not
  int64_t wakeups = 0;
};

namespace {

// The pool in which this thread will look for work soon.
thread_local const void* soon_free_in = nullptr;

}  // namespace

void ThreadPool::Shared::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    const size_t number = scheduler.Take();
    if (number == TaskScheduler::kNothing) {
      if (refused || (ending && scheduler.AllClosed())) break;
      scheduler.Sleeps();
      changed.wait(lock);
      scheduler.Woke();
      ++wakeups;
      continue;
    }
    RunTask(number, kNever, &lock);
  }
  changed.notify_all();  // the others end as well
}

// A `done` may take long, so another thread is woken for the other tasks and for what the `done`
// adds. A caller that runs any other task is soon back and wakes nobody.
bool ThreadPool::Shared::RunTask(size_t number, TimePoint until,
                                 std::unique_lock<std::mutex>* lock) {
  Task& task = tasks[number];
  const bool last = task.adds == Adds::kLast;
  const bool wakes = (until == kNever || !last) && scheduler.Wakes();
  lock->unlock();
  if (wakes) changed.notify_one();
  const void* const before = std::exchange(soon_free_in, last ? this : nullptr);
  const bool more = task.work(until);
  soon_free_in = before;
  lock->lock();
  scheduler.Ran(number, more);
  if (scheduler.Closed(number)) closed.notify_all();
  return more;
}

ThreadPool::ThreadPool() : shared_(std::make_shared<Shared>()) {}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
}

Status ThreadPool::Start(size_t threads) {
  Status started;
  for (size_t i = 0; i < threads && started.ok(); ++i) {
    threads_.push_back(std::make_unique<WorkerThread>());
    started = threads_.back()->Start("tfring-pool-" + std::to_string(i),
                                     [shared = shared_] { shared->Run(); });
  }
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->running = started.ok();
    shared_->refused = !started.ok();
  }
  if (!started.ok()) Join();
  return started;
}

size_t ThreadPool::Open(Adds adds, Work work) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->tasks.push_back({adds, std::move(work)});
  return shared_->scheduler.Open();
}

bool ThreadPool::Add(size_t task) {
  bool wakes = false;
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->running || !shared_->scheduler.Add(task)) return false;
    wakes = soon_free_in != shared_.get() && shared_->scheduler.Wakes();
  }
  if (wakes) shared_->changed.notify_one();
  return true;
}

bool ThreadPool::Close(size_t task, TimePoint deadline) {
  const auto closed = [&] { return shared_->scheduler.Closed(task); };
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->scheduler.Close(task);
  if (shared_->ending) shared_->changed.notify_all();
  if (deadline != kNever) return shared_->closed.wait_until(lock, until, closed);
  shared_->closed.wait(lock, closed);
  return true;
}

bool ThreadPool::Join(TimePoint deadline) {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
  bool all = true;
  for (auto& thread : threads_) all &= thread->Join(deadline);
  threads_.clear();
  return all;
}

ThreadPool::CallerRuns::CallerRuns(ThreadPool* pool)
    : pool_(soon_free_in == nullptr ? pool : nullptr) {
  if (pool_ != nullptr) soon_free_in = pool_->shared_.get();
}

ThreadPool::CallerRuns::~CallerRuns() {
  if (pool_ != nullptr) soon_free_in = nullptr;
}

void ThreadPool::CallerRuns::RunTasks(TimePoint until) {
  if (pool_ == nullptr) return;
  const std::shared_ptr<Shared> shared = pool_->shared_;  // a `done` may end the pool
  std::fenv_t arithmetic;
  std::fegetenv(&arithmetic);
  std::fesetenv(FE_DFL_ENV);  // the same sums as on the pool's threads
  std::unique_lock<std::mutex> lock(shared->mutex);
  bool leaves = false;
  while (!leaves) {
    const size_t number = shared->scheduler.Take();
    if (number == TaskScheduler::kNothing) break;
    leaves = shared->RunTask(number, until, &lock) || MonotonicNow() >= until;
  }
  const bool wakes = shared->scheduler.Wakes();
  lock.unlock();
  if (wakes) shared->changed.notify_one();
  std::fesetenv(&arithmetic);
}

int64_t ThreadPool::wakeups() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->wakeups;
}

}  // namespace tfring
