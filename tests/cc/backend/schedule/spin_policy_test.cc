#include "ops/runtime/backend/schedule/spin_policy.h"

#include <vector>

#include "ops/runtime/base/clock.h"
#include "tests/cc/test.h"

namespace tfring::spin_policy_test {
namespace {

TEST(WaitEndsWithWhatIsSeenOrAfterItsLimit) {
  int looks = 0;
  const auto third = [&]() -> Result<bool> { return ++looks == 3; };
  EXPECT_TRUE(*SpinPolicy::Wait(3600 * kSecond, third));
  EXPECT_EQ(looks, 3);
  const auto error = []() -> Result<bool> { return Unavailable("gone"); };
  EXPECT_TRUE(!SpinPolicy::Wait(3600 * kSecond, error).ok());
  const TimePoint begin = MonotonicNow();
  EXPECT_TRUE(!*SpinPolicy::Wait(SpinPolicy::kWaitTime, third));
  EXPECT_TRUE(MonotonicNow() - begin >= SpinPolicy::kWaitTime);
  looks = 2;
  EXPECT_TRUE(*SpinPolicy::Wait(-kSecond, third));  // it looks at least once
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
