#include "ops/runtime/backend/collective_queue.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/runtime/base/check.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/interfaces/plan_marks.h"

namespace tfring {
namespace {

std::unique_ptr<ThreadPool> OneThread() {
  auto pool = std::make_unique<ThreadPool>();
  const Status started = pool->Start(1);
  if (!started.ok()) throw std::runtime_error(started.ToString());
  return pool;
}

}  // namespace

CollectiveQueue::CollectiveQueue(Hooks hooks, CompletionSink sink, std::atomic<bool>* poison,
                                 ThreadPool* pool)
    : hooks_(std::move(hooks)),
      sink_(std::move(sink)),
      poison_(poison),
      own_pool_(pool == nullptr ? OneThread() : nullptr),
      pool_(pool == nullptr ? own_pool_.get() : pool),
      task_(pool_->Open(ThreadPool::Adds::kLast,
                        [this](TimePoint until) { return RunNext(until); })) {}

CollectiveQueue::~CollectiveQueue() {
  Abort(Cancelled("the backend was closed"));
  pool_->Close(task_);
  if (own_pool_ != nullptr) own_pool_->Join();
}

void CollectiveQueue::Submit(Collective collective) {
  const uint64_t sequence = collective.sequence;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(collective));
  }
  TFRING_CHECK(pool_->Add(task_)) << "plan " << sequence << " came to a backend that is closed";
}

void CollectiveQueue::Abort(Status why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The reason of the first abort counts. It replaces that of a stream which broke before it.
    if (poison_->load(std::memory_order_relaxed)) return;
    ended_ = Completion{0, std::move(why), kNoRank};
    poison_->store(true, std::memory_order_release);
  }
  hooks_.interrupt();
}

bool CollectiveQueue::RunNext(TimePoint until) {
  bool more = false;
  std::optional<Completion> completion;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!running_) {
      if (queue_.empty()) return false;
      running_ = std::move(queue_.front());
      queue_.pop_front();
      completion = ended_;
    }
    more = !queue_.empty();
  }
  if (!completion) completion = Run(until);
  if (!completion) return true;
  completion->sequence = running_->sequence;
  running_.reset();
  sink_(std::move(*completion));
  return more;
}

std::optional<Completion> CollectiveQueue::Run(TimePoint until) {
  PlanMarks* const marks = running_->marks;
  if (marks != nullptr && marks->started.load(std::memory_order_relaxed) == 0) {
    marks->started.store(MonotonicNow(), std::memory_order_relaxed);
  }
  std::optional<Completion> completion = hooks_.run(*running_, until);
  return completion ? Ended(std::move(*completion)) : completion;
}

Completion CollectiveQueue::Ended(Completion completion) {
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

}  // namespace tfring
