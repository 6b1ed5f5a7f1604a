#include "ops/runtime/backend/schedule/progress_watch.h"

#include <algorithm>

namespace tfring {
namespace {

// If a sleep ends this much too late, the process or its machine was stopped.
constexpr Duration kStopped = kSecond;
// A rank in trouble gives up before the limit: by a quarter of it, at most this much.
constexpr Duration kMaxMargin = 5 * kSecond;

}  // namespace

TimePoint ProgressWatch::EarlyEnd() const {
  return limit_ > 0 ? After(since_, limit_ - std::min(limit_ / 4, kMaxMargin)) : kNever;
}

TimePoint ProgressWatch::End() const { return limit_ > 0 ? After(since_, limit_) : kNever; }

TimePoint ProgressWatch::Sleep(TimePoint now) {
  if (moved_) {
    moved_ = false;
    since_ = now;
    early_end_passed_ = false;
    next_warning_ = warning_ > 0 ? After(now, warning_) : kNever;
  }
  deadline_ = std::min(next_warning_, early_end_passed_ ? End() : EarlyEnd());
  return deadline_;
}

ProgressWatch::Verdict ProgressWatch::Judge(TimePoint now, bool trouble) {
  const Duration late = now - deadline_;
  if (late >= kStopped) {
    since_ = After(since_, late);
    if (next_warning_ != kNever) next_warning_ = After(next_warning_, late);
    return Verdict::kGoOn;
  }
  if (now >= End() || (trouble && now >= EarlyEnd())) return Verdict::kEnd;
  early_end_passed_ = now >= EarlyEnd();
  if (now < next_warning_) return Verdict::kGoOn;
  next_warning_ = After(now, warning_);
  return Verdict::kWarn;
}

}  // namespace tfring
