#include "ops/runtime/process/inbox.h"

#include <algorithm>
#include <utility>

namespace tfring {

bool Inbox::Add(Completion completion) {
  std::lock_guard<std::mutex> lock(mutex_);
  completions_.push_back(std::move(completion));
  return leaving_;
}

void Inbox::RequestShutdown(const std::string& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  shutdown_ = true;
  error_ = error;
  leaving_ = true;
}

void Inbox::Abandon(const Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (abandon_.ok()) abandon_ = why;
}

Status Inbox::abandoned() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return abandon_;
}

bool Inbox::CanWait(bool awaits_end) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (shutdown_ || !abandon_.ok()) return false;
  if (awaits_end || leaving_) return completions_.empty();
  return std::all_of(completions_.begin(), completions_.end(), Succeeded);
}

void Inbox::Drain(EngineEvents* events) {
  std::lock_guard<std::mutex> lock(mutex_);
  events->completions.swap(completions_);
  events->shutdown = std::exchange(shutdown_, false);
  events->error = std::exchange(error_, "");
}

}  // namespace tfring
