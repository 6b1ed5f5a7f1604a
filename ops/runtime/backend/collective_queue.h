#ifndef TFRING_OPS_RUNTIME_BACKEND_COLLECTIVE_QUEUE_H_
#define TFRING_OPS_RUNTIME_BACKEND_COLLECTIVE_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/thread_pool/thread_pool.h"

namespace tfring {

// The task of a thread pool that runs collectives in order, one at a time. One completion of each
// goes to the sink, on the thread that has run it. A failure leaves the streams to the peers in the
// middle of a message, so that every later collective ends with the same failure; the exception is
// Unimplemented, which all members find out before they move anything. Submit and Abort are
// thread-safe and return at once; the destructor ends what is left as cancelled.
class CollectiveQueue {
 public:
  struct Hooks {
    // Does the work, on one thread of the pool at a time; returns soon after Abort. Nothing if it
    // would have to wait beyond `until`: then it is called again with the same collective.
    std::function<std::optional<Completion>(const Collective&, TimePoint until)> run;
    // Makes `run` return if it waits for peers; called from any thread.
    std::function<void()> interrupt;
  };

  // Abort sets `poison`. It, what the hooks use and the pool must outlive this. Without a pool it
  // has one of its own; throws std::runtime_error if the system refuses the thread.
  CollectiveQueue(Hooks hooks, CompletionSink sink, std::atomic<bool>* poison,
                  ThreadPool* pool = nullptr);
  // Not on a thread of the pool.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  void Submit(Collective collective);
  void Abort(Status why);

  // How often a thread of its own pool woke.
  int64_t wakeups() const { return own_pool_ == nullptr ? 0 : own_pool_->wakeups(); }

 private:
  bool RunNext(TimePoint until);
  std::optional<Completion> Run(TimePoint until);
  Completion Ended(Completion completion);

  const Hooks hooks_;
  const CompletionSink sink_;
  std::atomic<bool>* const poison_;

  std::mutex mutex_;  // guards the two below
  std::deque<Collective> queue_;
  std::optional<Completion> ended_;  // how everything ends from now on

  std::optional<Collective>
      running_;  // of the thread that has the task; stays if it is left undone

  const std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool* const pool_;
  const size_t task_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_COLLECTIVE_QUEUE_H_
