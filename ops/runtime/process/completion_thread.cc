#include "ops/runtime/process/completion_thread.h"

#include <iterator>
#include <utility>

namespace tfring {
namespace {

thread_local bool is_completion_thread = false;

// Destroys the call, with all that it holds, before the next one begins.
void RunDone(FinishedCall finished) {
  if (finished.call.done) finished.call.done(finished.status);
}

}  // namespace

struct CompletionThread::Queue {
  mutable std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::vector<FinishedCall> calls;
  bool sleeping = false;
  bool stopping = false;
  bool ended = false;
  int64_t wakeups = 0;
};

CompletionThread::CompletionThread() : queue_(std::make_shared<Queue>()) {}

Status CompletionThread::Start() {
  return thread_.Start("tfring-complete", [queue = queue_] { Run(queue.get()); });
}

bool CompletionThread::IsAny() { return is_completion_thread; }

void CompletionThread::Run(Queue* queue) {
  is_completion_thread = true;
  std::unique_lock<std::mutex> lock(queue->mutex);
  for (;;) {
    while (queue->calls.empty() && !queue->stopping) {
      queue->sleeping = true;
      queue->changed.wait(lock);
      queue->sleeping = false;
      ++queue->wakeups;
    }
    if (queue->calls.empty()) break;
    std::vector<FinishedCall> calls = std::exchange(queue->calls, {});
    lock.unlock();
    for (FinishedCall& call : calls) RunDone(std::move(call));
    calls.clear();
    lock.lock();
  }
  queue->ended = true;
}

void CompletionThread::Push(std::vector<FinishedCall> calls) {
  if (calls.empty()) return;
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    if (!queue_->ended) {
      if (queue_->calls.empty()) {
        queue_->calls = std::move(calls);
      } else {
        std::move(calls.begin(), calls.end(), std::back_inserter(queue_->calls));
      }
      calls.clear();
      wake = queue_->sleeping;
    }
  }
  if (wake) queue_->changed.notify_one();
  for (FinishedCall& call : calls) RunDone(std::move(call));
}

bool CompletionThread::Stop(TimePoint deadline) {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->changed.notify_one();
  if (!thread_.Join(deadline)) return false;
  // A thread that never started has run nothing.
  std::vector<FinishedCall> calls;
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->ended = true;
    calls.swap(queue_->calls);
  }
  for (FinishedCall& call : calls) RunDone(std::move(call));
  return true;
}

int64_t CompletionThread::wakeups() const {
  std::lock_guard<std::mutex> lock(queue_->mutex);
  return queue_->wakeups;
}

}  // namespace tfring
