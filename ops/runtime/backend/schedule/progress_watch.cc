#include "ops/runtime/backend/schedule/progress_watch.h"

#include <algorithm>

namespace tfring {
namespace {

// A sleep that ends so much too late was none: the process was stopped, or its machine.
constexpr Duration kStopped = kSecond;
// The sleeps before and after the limit: a quarter of it, but not more than this.
constexpr Duration kMaxMargin = 5 * kSecond;

TimePoint After(TimePoint start, Duration wait) {
  return start > kNever - wait ? kNever : start + wait;
}

}  // namespace

TimePoint ProgressWatch::EndOf(Stage stage) const {
  if (limit_ <= 0) return kNever;
  const Duration margin = std::min(limit_ / 4, kMaxMargin);
  const Duration shift = stage == kBeforeLimit ? -margin : stage == kAtLimit ? 0 : margin;
  return After(since_, limit_ + shift);
}

TimePoint ProgressWatch::NextDeadline() const { return std::min(next_warning_, EndOf(stage_)); }

TimePoint ProgressWatch::Sleep(TimePoint now) {
  if (moved_) {
    moved_ = false;
    since_ = now;
    stage_ = kBeforeLimit;
    next_warning_ = warning_ > 0 ? After(now, warning_) : kNever;
  }
  deadline_ = NextDeadline();
  return deadline_;
}

ProgressWatch::Verdict ProgressWatch::Judge(TimePoint now, bool trouble) {
  const Duration late = now - deadline_;
  if (late >= kStopped) {
    since_ = After(since_, late);
    if (next_warning_ != kNever) next_warning_ = After(next_warning_, late);
    return Verdict::kGoOn;
  }
  if (now >= EndOf(stage_)) {
    if (stage_ == kAfterLimit || (stage_ == kAtLimit && trouble)) return Verdict::kEnd;
    stage_ = stage_ == kBeforeLimit ? kAtLimit : kAfterLimit;
  }
  if (now < next_warning_) return Verdict::kGoOn;
  next_warning_ = After(now, warning_);
  return Verdict::kWarn;
}

}  // namespace tfring
