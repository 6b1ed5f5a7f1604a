#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_PROGRESS_WATCH_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_PROGRESS_WATCH_H_

#include "ops/runtime/base/types.h"

namespace tfring {

// Measures how long a running schedule has made no progress, and says when to warn and when to give
// up. When one path is cut, all ranks of a plan come to a halt at almost the same time, and only
// the two at its ends can tell why: a rank that sees trouble on a path gives up shortly before the
// limit, every other at the limit, so that the error is the one that names the path. It also comes
// before that of ranks that wait for the next collective.
//
// Time in which the process was stopped is not the peers' silence: a sleep that ends much later
// than asked for moves the limits by as much. Pure: times are passed in. Used by one thread.
class ProgressWatch {
 public:
  enum class Verdict { kGoOn, kWarn, kEnd };

  // 0 is never. Warnings repeat.
  explicit ProgressWatch(Duration warning = 0, Duration limit = 0)
      : warning_(warning), limit_(limit) {}

  // Something has moved: the time starts at the next sleep.
  void Moved() { moved_ = true; }

  // Before each sleep: until when to sleep.
  TimePoint Sleep(TimePoint now);

  // After each sleep. True if its deadline has passed: then ask for the verdict.
  bool Due(TimePoint now) const { return now >= deadline_; }
  // `trouble`: whether a path of the schedule seems to be cut.
  Verdict Judge(TimePoint now, bool trouble);

  Duration quiet(TimePoint now) const { return now - since_; }

 private:
  // When to give up in trouble, and when in any case.
  TimePoint EarlyEnd() const;
  TimePoint End() const;

  Duration warning_;
  Duration limit_;
  bool moved_ = true;
  TimePoint since_ = 0;
  TimePoint next_warning_ = kNever;
  bool early_end_passed_ = false;
  TimePoint deadline_ = kNever;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_PROGRESS_WATCH_H_
