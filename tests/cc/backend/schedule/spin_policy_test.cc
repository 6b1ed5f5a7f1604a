#include "ops/runtime/backend/schedule/spin_policy.h"

#include <vector>

#include "ops/runtime/base/clock.h"
#include "tests/cc/test.h"

namespace tfring::spin_policy_test {
namespace {

TEST(WaitEndsWithWhatIsSeen) {
  int looks = 0;
  const Result<bool> seen =
      SpinPolicy::Wait(3600 * kSecond, [&]() -> Result<bool> { return ++looks == 3; });
  EXPECT_TRUE(seen.ok() && *seen);
  EXPECT_EQ(looks, 3);
}

TEST(WaitEndsWithAnError) {
  int looks = 0;
  const Result<bool> seen = SpinPolicy::Wait(3600 * kSecond, [&]() -> Result<bool> {
    if (++looks < 3) return false;
    return Unavailable("gone");
  });
  EXPECT_EQ(seen.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(looks, 3);
}

TEST(WaitEndsAfterItsLimit) {
  const TimePoint begin = MonotonicNow();
  const Result<bool> seen =
      SpinPolicy::Wait(SpinPolicy::kWaitTime, []() -> Result<bool> { return false; });
  EXPECT_TRUE(seen.ok() && !*seen);
  EXPECT_TRUE(MonotonicNow() - begin >= SpinPolicy::kWaitTime);
}

TEST(WaitLooksAtLeastOnce) {
  const Result<bool> seen = SpinPolicy::Wait(-kSecond, []() -> Result<bool> { return true; });
  EXPECT_TRUE(seen.ok() && *seen);
}

// How many waits begin with sleeping after each of `outcomes`.
std::vector<int> Skipped(const std::vector<bool>& outcomes) {
  SpinPolicy policy;
  std::vector<int> skipped;
  for (const bool over : outcomes) {
    policy.Spun(over);
    skipped.push_back(0);
    while (!policy.ShouldSpin()) ++skipped.back();
  }
  return skipped;
}

TEST(EachFailureInARowLeavesOutTwiceAsManyWaits) {
  EXPECT_EQ(Skipped({true, false, false, false, true, false}),
            (std::vector<int>{0, 1, 3, 7, 0, 1}));
}

TEST(WaitsAreNeverLeftOutForEver) { EXPECT_EQ(Skipped(std::vector<bool>(100, false)).back(), 256); }

}  // namespace
}  // namespace tfring::spin_policy_test
