// When a schedule that does not move is warned about and ended, on a clock of the test's own.
#include "ops/runtime/backend/schedule/progress_watch.h"

#include <vector>

#include "tests/cc/test.h"

namespace tfring::progress_watch_test {
namespace {

using Verdict = ProgressWatch::Verdict;

struct Outcome {
  std::vector<TimePoint> warnings;  // seconds after the start
  TimePoint end = kNever;
};

// Sleeps as the runner does until the end, or `limit` seconds.
Outcome Play(ProgressWatch watch, bool trouble, TimePoint limit, TimePoint stopped_from = kNever,
             Duration stopped = 0) {
  Outcome outcome;
  const TimePoint start = 1000 * kSecond;
  TimePoint now = start;
  while (now < start + limit * kSecond) {
    const TimePoint deadline = watch.Sleep(now);
    if (deadline == kNever) return outcome;
    const TimePoint stop = stopped_from == kNever ? kNever : start + stopped_from * kSecond;
    const bool stops = now <= stop && stop <= deadline;
    now = stops && stop + stopped * kSecond > deadline ? stop + stopped * kSecond : deadline;
    if (!watch.Due(now)) continue;
    const Verdict verdict = watch.Judge(now, trouble);
    if (verdict == Verdict::kWarn) outcome.warnings.push_back((now - start) / kSecond);
    if (verdict != Verdict::kEnd) continue;
    outcome.end = (now - start) / kSecond;
    return outcome;
  }
  return outcome;
}

TEST(WarnsRepeatedlyAndEndsAtTheLimit) {
  const Outcome cut = Play(ProgressWatch(10 * kSecond, 60 * kSecond), true, 200);
  EXPECT_TRUE(cut.warnings == (std::vector<TimePoint>{10, 20, 30, 40, 50}));
  EXPECT_EQ(cut.end, 55);
  // A rank without a sign of trouble lets the ranks at the ends of the path speak first.
  const Outcome behind = Play(ProgressWatch(10 * kSecond, 60 * kSecond), false, 200);
  EXPECT_EQ(behind.end, 60);
  EXPECT_EQ(Play(ProgressWatch(0, 4 * kSecond), true, 200).end, 3);
  EXPECT_EQ(Play(ProgressWatch(0, 4 * kSecond), false, 200).end, 4);
}

TEST(NoLimitsNoDeadlines) {
  ProgressWatch watch;
  EXPECT_EQ(watch.Sleep(5), kNever);
  EXPECT_EQ(Play(ProgressWatch(10 * kSecond, 0), true, 100).end, kNever);
}

TEST(ProgressStartsTheTimeAnew) {
  ProgressWatch watch(0, 8 * kSecond);
  EXPECT_EQ(watch.Sleep(0), 6 * kSecond);
  watch.Moved();
  EXPECT_EQ(watch.Sleep(5 * kSecond), 11 * kSecond);
  EXPECT_EQ(watch.quiet(7 * kSecond), 2 * kSecond);
  // Without progress another sleep has the same end.
  EXPECT_EQ(watch.Sleep(9 * kSecond), 11 * kSecond);
}

TEST(TimeInWhichTheProcessWasStoppedDoesNotCount) {
  // From second 3 on for 90 s: the sleep that should have ended at 10 ends at 93.
  const Outcome stopped = Play(ProgressWatch(10 * kSecond, 60 * kSecond), true, 1000, 3, 90);
  EXPECT_EQ(stopped.end, 55 + 83);
  // Stopped across the limit: there is as much time again as was left.
  const Outcome late = Play(ProgressWatch(0, 60 * kSecond), true, 1000, 50, 30);
  EXPECT_EQ(late.end, 55 + 25);
}

}  // namespace
}  // namespace tfring::progress_watch_test
