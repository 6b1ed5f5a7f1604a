#include "ops/runtime/process/warning_event.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace tfring {
namespace {

constexpr Duration kPatience = 5 * kSecond;

}  // namespace

bool WarningEvent::Signal(std::vector<std::string> warnings, TimePoint now) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool taken = listens_ && !closed_ && (warnings_.empty() || now - since_ < kPatience);
  if (taken) {
    if (warnings_.empty()) since_ = now;
    std::move(warnings.begin(), warnings.end(), std::back_inserter(warnings_));
  }
  signalled_ = true;
  changed_.notify_one();
  return taken;
}

void WarningEvent::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

WarningEvent::Outcome WarningEvent::Wait(Duration limit, std::vector<std::string>* warnings) {
  std::unique_lock<std::mutex> lock(mutex_);
  listens_ = true;
  changed_.wait_for(lock, std::chrono::nanoseconds(limit),
                    [this] { return signalled_ || closed_; });
  if (closed_) return Outcome::kEnd;
  if (!signalled_) return Outcome::kTimeout;
  signalled_ = false;
  std::move(warnings_.begin(), warnings_.end(), std::back_inserter(*warnings));
  warnings_.clear();
  return Outcome::kWarning;
}

}  // namespace tfring
