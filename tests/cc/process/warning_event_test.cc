#include "ops/runtime/process/warning_event.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::warning_event_test {
namespace {

using Outcome = WarningEvent::Outcome;
constexpr Duration kLong = 60 * kSecond;

Outcome Wait(WarningEvent* event, Duration limit) {
  std::vector<std::string> warnings;
  return event->Wait(limit, &warnings);
}

TEST(WhoWaitsGetsTheWarningsAndTheyAreLoggedWhereItDoesNotCome) {
  WarningEvent event;
  EXPECT_TRUE(!event.Signal({"nobody has ever waited"}, 0));
  std::vector<std::string> said;
  EXPECT_TRUE(event.Wait(kLong, &said) == Outcome::kWarning);
  EXPECT_TRUE(said.empty());
  EXPECT_TRUE(event.Wait(0, &said) == Outcome::kTimeout);
  EXPECT_TRUE(event.Signal({"a"}, 10 * kSecond));
  EXPECT_TRUE(event.Signal({"b"}, 14 * kSecond));
  EXPECT_TRUE(!event.Signal({"it has not come for 5 s"}, 15 * kSecond));
  EXPECT_TRUE(event.Wait(kLong, &said) == Outcome::kWarning);
  EXPECT_TRUE((said == std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(event.Wait(0, &said) == Outcome::kTimeout);
  EXPECT_TRUE(event.Signal({"c"}, 100 * kSecond));
}

TEST(TheEndReachesThoseWhoWaitAndThoseWhoComeLater) {
  auto event = std::make_shared<WarningEvent>();
  Outcome outcome = Outcome::kTimeout;
  std::thread waiter([&outcome, event] { outcome = Wait(event.get(), kLong); });
  event->Close();
  waiter.join();
  EXPECT_TRUE(outcome == Outcome::kEnd);
  EXPECT_TRUE(!event->Signal({"too late"}, 0));
  EXPECT_TRUE(Wait(event.get(), kLong) == Outcome::kEnd);
}

}  // namespace
}  // namespace tfring::warning_event_test
