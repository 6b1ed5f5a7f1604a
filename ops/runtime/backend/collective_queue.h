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

// The task of a thread pool that runs collectives in order, one at a time. The thread that has run
// a collective gives its one completion to the sink. After a failure the streams may be in the
// middle of a message, so all later collectives fail the same way. Unimplemented is different:
// members detect it before moving data, and later collectives run. Submit and Abort are thread-safe
// and return at once; the destructor ends the remaining collectives with Cancelled.
class CollectiveQueue {
 public:
  struct Hooks {
    // Does the work, on one thread of the pool at a time; returns soon after Abort. Returns nothing
    // if it would have to wait beyond `until`: it is then called again with the same collective.
    std::function<std::optional<Completion>(const Collective&, TimePoint until)> run;
    // Makes `run` return if it waits for peers; called from any thread.
    std::function<void()> interrupt;
  };

  // Abort sets `poison`. `poison`, `pool` and what the hooks use must outlive this. If `pool` is
  // null, the queue makes one; throws std::runtime_error if the system refuses the thread.
  CollectiveQueue(Hooks hooks, CompletionSink sink, std::atomic<bool>* poison,
                  ThreadPool* pool = nullptr);
  // Not on a thread of the pool.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  void Submit(Collective collective);
  void Abort(Status why);

  // How often a thread of the pool that it made has woken; 0 with a pool from outside.
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
  std::optional<Completion> ended_;  // how all collectives end after a failure

  // Used by the thread that runs the task. Stays set between two calls of `run`.
  std::optional<Collective> running_;

  const std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool* const pool_;
  const size_t task_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_COLLECTIVE_QUEUE_H_
