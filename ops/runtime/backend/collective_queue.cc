#include "ops/runtime/backend/collective_queue.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/runtime/base/check.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/interfaces/plan_marks.h"

namespace tfring {
namespace {

std::unique_ptr<Crew> CrewOfOne() {
  auto crew = std::make_unique<Crew>();
  const Status started = crew->Start(1);
  if (!started.ok()) throw std::runtime_error(started.ToString());
  return crew;
}

}  // namespace

CollectiveQueue::CollectiveQueue(Hooks hooks, CompletionSink sink, std::atomic<bool>* poison,
                                 Crew* crew)
    : hooks_(std::move(hooks)),
      sink_(std::move(sink)),
      poison_(poison),
      own_crew_(crew == nullptr ? CrewOfOne() : nullptr),
      crew_(crew == nullptr ? own_crew_.get() : crew),
      duty_(crew_->Open(Crew::Adds::kLast, [this](TimePoint until) { return RunNext(until); })) {}

CollectiveQueue::~CollectiveQueue() {
  Abort(Cancelled("the backend was closed"));
  crew_->Close(duty_);
  if (own_crew_ != nullptr) own_crew_->Join();
}

void CollectiveQueue::Submit(Collective collective) {
  const uint64_t sequence = collective.sequence;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(collective));
  }
  TFRING_CHECK(crew_->Add(duty_)) << "plan " << sequence << " came to a backend that is closed";
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
