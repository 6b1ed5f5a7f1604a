#include "ops/runtime/process/warning_bell.h"

#include <memory>
#include <thread>

#include "tests/cc/test.h"

namespace tfring::warning_bell_test {
namespace {

using Heard = WarningBell::Heard;
constexpr Duration kLong = 60 * kSecond;

TEST(AWarningWakesTheOneThatWaits) {
  auto bell = std::make_shared<WarningBell>();
  Heard heard = Heard::kNothing;
  std::thread waiter([&heard, bell] { heard = bell->Wait(kLong); });
  bell->Ring();
  waiter.join();
  EXPECT_TRUE(heard == Heard::kWarning);
}

TEST(WarningsThatNobodyWaitedForAreKeptAsOne) {
  WarningBell bell;
  EXPECT_TRUE(bell.Wait(0) == Heard::kNothing);
  bell.Ring();
  bell.Ring();
  EXPECT_TRUE(bell.Wait(kLong) == Heard::kWarning);
  EXPECT_TRUE(bell.Wait(0) == Heard::kNothing);
}

TEST(TheEndReachesThoseWhoWaitAndThoseWhoComeLater) {
  auto bell = std::make_shared<WarningBell>();
  Heard heard = Heard::kNothing;
  std::thread waiter([&heard, bell] { heard = bell->Wait(kLong); });
  bell->Close();
  waiter.join();
  EXPECT_TRUE(heard == Heard::kEnd);
  bell->Ring();
  EXPECT_TRUE(bell->Wait(kLong) == Heard::kEnd);
}

}  // namespace
}  // namespace tfring::warning_bell_test
