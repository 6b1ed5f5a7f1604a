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

// A queue of collectives and the thread that runs them in order, sleeping while there is none. It
// passes one completion of every collective to the sink, on this thread. A failure leaves the
// streams to the peers in the middle of a message, so that every later collective ends with the
// same failure; the exception is Unimplemented, which all members find out before they move
// anything. Submit and Abort are thread-safe and return at once; the destructor joins the thread
// and ends what is left as cancelled.
class DataThread {
 public:
  struct Hooks {
    // Does the work, on this thread; returns soon after Abort.
    std::function<Completion(const Collective&)> run;
    // Makes `run` return if it waits for peers; called from any thread.
    std::function<void()> interrupt;
  };

  // Abort sets `poison`. It and what the hooks use must outlive this.
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
