#include "ops/runtime/process/warning_bell.h"

#include <chrono>

namespace tfring {

void WarningBell::Ring() {
  std::lock_guard<std::mutex> lock(mutex_);
  rung_ = true;
  changed_.notify_one();
}

void WarningBell::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

WarningBell::Heard WarningBell::Wait(Duration limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(limit), [this] { return rung_ || closed_; });
  if (closed_) return Heard::kEnd;
  if (!rung_) return Heard::kNothing;
  rung_ = false;
  return Heard::kWarning;
}

}  // namespace tfring
