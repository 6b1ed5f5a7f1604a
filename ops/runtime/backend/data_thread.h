#ifndef TFRING_OPS_RUNTIME_BACKEND_DATA_THREAD_H_
#define TFRING_OPS_RUNTIME_BACKEND_DATA_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// A queue of collectives and the thread that runs them in order, sleeping while there is none.
// Every one is completed through the sink exactly once, on this thread. After a failure the peers'
// streams are out of step, so that all that follow end with the same failure. Only what no member
// can do (Unimplemented) has moved nothing anywhere and ends alone. Submit and Abort are
// thread-safe and return at once; the destructor joins, ending what is left as cancelled.
class DataThread {
 public:
  struct Hooks {
    // Does the work, on this thread; returns soon after Abort.
    std::function<Completion(const Collective&)> run;
    // Ends a wait that `run` is in; called from any thread.
    std::function<void()> interrupt;
  };

  // `poison` becomes true on Abort. It and what the hooks need must outlive this.
  DataThread(Hooks hooks, CompletionSink sink, std::atomic<bool>* poison);
  ~DataThread();
  DataThread(const DataThread&) = delete;
  DataThread& operator=(const DataThread&) = delete;

  void Submit(Collective collective);
  void Abort(Status why);

  int64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  bool Next(Collective* collective, std::optional<Completion>* ended);
  Completion Run(const Collective& collective);

  const Hooks hooks_;
  const CompletionSink sink_;
  std::atomic<bool>* const poison_;
  std::atomic<int64_t> wakeups_{0};

  std::mutex mutex_;  // guards the four below
  std::condition_variable changed_;
  std::deque<Collective> queue_;
  std::optional<Completion> ended_;  // how everything ends from now on
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_DATA_THREAD_H_
