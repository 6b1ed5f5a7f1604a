#include "ops/runtime/process/warning_bell.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::warning_bell_test {
namespace {

using Heard = WarningBell::Heard;
constexpr Duration kLong = 60 * kSecond;

Heard Wait(WarningBell* bell, Duration limit) {
  std::vector<std::string> warnings;
  return bell->Wait(limit, &warnings);
}

TEST(AWarningWakesTheOneThatWaits) {
  auto bell = std::make_shared<WarningBell>();
  Heard heard = Heard::kNothing;
  std::thread waiter([&heard, bell] { heard = Wait(bell.get(), kLong); });
  static_cast<void>(bell->Ring({}, 0));  // it may not wait yet
  waiter.join();
  EXPECT_TRUE(heard == Heard::kWarning);
}

TEST(WhoWaitsGetsTheWarningsAndTheyAreLoggedWhereItDoesNotCome) {
  WarningBell bell;
  EXPECT_TRUE(!bell.Ring({"nobody has ever waited"}, 0));
  std::vector<std::string> said;
  EXPECT_TRUE(bell.Wait(kLong, &said) == Heard::kWarning);
  EXPECT_TRUE(said.empty());
  EXPECT_TRUE(bell.Wait(0, &said) == Heard::kNothing);
  EXPECT_TRUE(bell.Ring({"a"}, 10 * kSecond));
  EXPECT_TRUE(bell.Ring({"b"}, 14 * kSecond));
  EXPECT_TRUE(!bell.Ring({"it has not come for 5 s"}, 15 * kSecond));
  EXPECT_TRUE(bell.Wait(kLong, &said) == Heard::kWarning);
  EXPECT_TRUE((said == std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(bell.Wait(0, &said) == Heard::kNothing);
  EXPECT_TRUE(bell.Ring({"c"}, 100 * kSecond));
}

TEST(TheEndReachesThoseWhoWaitAndThoseWhoComeLater) {
  auto bell = std::make_shared<WarningBell>();
  Heard heard = Heard::kNothing;
  std::thread waiter([&heard, bell] { heard = Wait(bell.get(), kLong); });
  bell->Close();
  waiter.join();
  EXPECT_TRUE(heard == Heard::kEnd);
  EXPECT_TRUE(!bell->Ring({"too late"}, 0));
  EXPECT_TRUE(Wait(bell.get(), kLong) == Heard::kEnd);
}

}  // namespace
}  // namespace tfring::warning_bell_test
