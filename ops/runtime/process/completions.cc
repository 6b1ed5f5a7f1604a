#include "ops/runtime/process/completions.h"

#include <cfenv>
#include <iterator>
#include <mutex>
#include <utility>

#include "ops/runtime/base/clock.h"

namespace tfring {
namespace {

// Whose `done` this thread of a pool runs.
thread_local const void* current_queue = nullptr;

}  // namespace

struct Completions::Queue {
  // What is there now, but nothing after `until` except the first. Returns whether it left some.
  bool Run(TimePoint until) {
    std::vector<FinishedCall> taken;
    {
      std::lock_guard<std::mutex> lock(mutex);
      taken.swap(calls);
    }
    auto next = taken.begin();
    bool in_time = true;
    while (next != taken.end() && in_time) {
      // Destroyed, with all that it holds, before the next one begins.
      const FinishedCall call = std::move(*next++);
      if (call.call.done) call.call.done(call.status);
      in_time = until == kNever || MonotonicNow() < until;
    }
    if (next == taken.end()) return false;
    std::lock_guard<std::mutex> lock(mutex);
    calls.insert(calls.begin(), std::make_move_iterator(next),
                 std::make_move_iterator(taken.end()));
    return true;
  }

  std::mutex mutex;
  std::vector<FinishedCall> calls;  // guarded by mutex
};

Completions::Completions(ThreadPool* pool)
    : queue_(std::make_shared<Queue>()),
      pool_(pool),
      task_(pool->Open(ThreadPool::Adds::kAnyTime, [queue = queue_](TimePoint until) {
        // This thread also adds up: what a `done` leaves of rounding or of flushing to zero would
        // change bits of later collectives.
        std::fenv_t arithmetic;
        std::fegetenv(&arithmetic);
        const void* const before = std::exchange(current_queue, queue.get());
        const bool more = queue->Run(until);
        current_queue = before;
        std::fesetenv(&arithmetic);
        return more;
      })) {}

void Completions::Push(std::vector<FinishedCall> calls) {
  if (calls.empty()) return;
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    if (queue_->calls.empty()) {
      queue_->calls = std::move(calls);
    } else {
      std::move(calls.begin(), calls.end(), std::back_inserter(queue_->calls));
    }
  }
  if (!pool_->Add(task_)) queue_->Run(kNever);
}

bool Completions::Stop(TimePoint deadline) { return pool_->Close(task_, deadline); }

bool Completions::IsCurrent() const { return current_queue == queue_.get(); }

bool Completions::IsAny() { return current_queue != nullptr; }

}  // namespace tfring
