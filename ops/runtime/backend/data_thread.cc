#include "ops/runtime/backend/data_thread.h"

#include <pthread.h>

#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/interfaces/plan_marks.h"

namespace tfring {

DataThread::DataThread(Hooks hooks, CompletionSink sink, std::atomic<bool>* poison)
    : hooks_(std::move(hooks)),
      sink_(std::move(sink)),
      poison_(poison),
      thread_([this] { Loop(); }) {}

DataThread::~DataThread() {
  Abort(Cancelled("the backend was closed"));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void DataThread::Submit(Collective collective) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(collective));
  }
  changed_.notify_one();
}

void DataThread::Abort(Status why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The reason of the first abort counts. It replaces that of a stream which broke before it.
    if (poison_->load(std::memory_order_relaxed)) return;
    ended_ = Completion{0, std::move(why), kNoRank};
    poison_->store(true, std::memory_order_release);
  }
  hooks_.interrupt();
  changed_.notify_one();
}

bool DataThread::Next(Collective* collective, std::optional<Completion>* ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (queue_.empty()) {
    if (stopping_) return false;
    changed_.wait(lock);
    wakeups_.fetch_add(1, std::memory_order_relaxed);
  }
  *collective = std::move(queue_.front());
  queue_.pop_front();
  *ended = ended_;
  return true;
}

Completion DataThread::Run(const Collective& collective) {
  if (collective.marks != nullptr) {
    collective.marks->started.store(MonotonicNow(), std::memory_order_relaxed);
  }
  Completion completion = hooks_.run(collective);
  if (completion.status.ok() || completion.status.code() == StatusCode::kUnimplemented) {
    return completion;
  }
  // Those of this collective, and of none that follows.
  std::vector<BadValues> bad_values = std::exchange(completion.bad_values, {});
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_) ended_ = std::move(completion);
  completion = *ended_;
  completion.bad_values = std::move(bad_values);
  return completion;
}

void DataThread::Loop() {
  pthread_setname_np(pthread_self(), "tfring-data");
  Collective collective;
  std::optional<Completion> ended;
  while (Next(&collective, &ended)) {
    Completion completion = ended ? *ended : Run(collective);
    completion.sequence = collective.sequence;
    sink_(std::move(completion));
  }
}

}  // namespace tfring
