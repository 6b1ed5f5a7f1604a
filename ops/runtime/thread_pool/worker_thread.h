#ifndef TFRING_OPS_RUNTIME_THREAD_POOL_WORKER_THREAD_H_
#define TFRING_OPS_RUNTIME_THREAD_POOL_WORKER_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// A named thread that can be joined with a time limit. After the limit it is detached and runs on,
// so the body must own all that it uses. Blocks signals. Used by one thread at a time.
class WorkerThread {
 public:
  WorkerThread() = default;
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // Internal if the system has no thread left.
  Status Start(const std::string& name, std::function<void()> body);

  // False if it was still running at `deadline`. True at once if it never started.
  bool WaitFor(TimePoint deadline);
  // Waits as WaitFor does; detaches a thread that has not ended.
  bool Join(TimePoint deadline);

  bool IsCurrent() const { return id_.load() == std::this_thread::get_id(); }

 private:
  struct Ending {
    std::mutex mutex;  // guards ended
    std::condition_variable changed;
    bool ended = false;
  };
  std::thread thread_;
  std::atomic<std::thread::id> id_{};
  std::shared_ptr<Ending> ending_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_THREAD_POOL_WORKER_THREAD_H_
