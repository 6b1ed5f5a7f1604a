#include "ops/runtime/thread_pool/task_scheduler.h"

#include <algorithm>

namespace tfring {

size_t TaskScheduler::Open() {
  tasks_.emplace_back();
  return tasks_.size() - 1;
}

bool TaskScheduler::Add(size_t task) {
  if (Closed(task)) return false;
  tasks_[task].work = true;
  return true;
}

size_t TaskScheduler::Take() {
  for (size_t task = 0; task < tasks_.size(); ++task) {
    Task& next = tasks_[task];
    if (!next.work || next.running) continue;
    next.work = false;
    next.running = true;
    return task;
  }
  return kNothing;
}

void TaskScheduler::Ran(size_t task, bool more) {
  tasks_[task].running = false;
  if (more) tasks_[task].work = true;
}

bool TaskScheduler::Wakes() {
  const auto open = std::count_if(tasks_.begin(), tasks_.end(),
                                  [](const Task& task) { return task.work && !task.running; });
  if (static_cast<size_t>(open) <= woken_ || sleeping_ <= woken_) return false;
  ++woken_;
  return true;
}

void TaskScheduler::Woke() {
  --sleeping_;
  // A thread that woke for no reason takes the place of one that was woken; both look for work.
  if (woken_ > 0) --woken_;
}

bool TaskScheduler::Closed(size_t task) const {
  const Task& asked = tasks_[task];
  return asked.closing && !asked.work && !asked.running;
}

bool TaskScheduler::AllClosed() const {
  for (size_t task = 0; task < tasks_.size(); ++task) {
    if (!Closed(task)) return false;
  }
  return true;
}

}  // namespace tfring
