#include "ops/runtime/membership/hosts.h"

#include "tests/cc/test.h"

namespace tfring::membership::hosts_test {
namespace {

constexpr TimePoint kStart = 1000 * kSecond;

Hosts TwoHosts(HostPolicy policy) {
  Hosts hosts(policy);
  hosts.Set({{"a", 2}, {"b", 1}});
  return hosts;
}

TEST(SlotsAreTakenInTheOrderOfHosts) {
  const Hosts hosts = TwoHosts({});
  EXPECT_TRUE(hosts.Free(kStart, {}) == Place("a", 0));
  EXPECT_TRUE(hosts.Free(kStart, {{"a", 0}}) == Place("a", 1));
  EXPECT_TRUE(hosts.Free(kStart, {{"a", 1}}) == Place("a", 0));
  EXPECT_TRUE(hosts.Free(kStart, {{"a", 0}, {"a", 1}}) == Place("b", 0));
  EXPECT_TRUE(!hosts.Free(kStart, {{"a", 0}, {"a", 1}, {"b", 0}}));
}

TEST(AHostCoolsTwiceAsLongEachTime) {
  HostPolicy policy;
  policy.cool_most = 25 * kSecond;
  Hosts hosts = TwoHosts(policy);
  TimePoint now = kStart;
  hosts.OnFailure(now - 2 * kSecond, "a");
  hosts.OnFailure(now - kSecond, "a");
  EXPECT_TRUE(hosts.Usable(now, "a"));
  // The third failure in the window, and each one after it.
  for (Duration cool : {10 * kSecond, 20 * kSecond, 25 * kSecond, 25 * kSecond}) {
    hosts.OnFailure(now, "a");
    EXPECT_TRUE(!hosts.Usable(now + cool - 1, "a"));
    EXPECT_TRUE(hosts.Free(now + cool - 1, {}) == Place("b", 0));
    now += cool;
    EXPECT_TRUE(hosts.Usable(now, "a"));
  }
  EXPECT_TRUE(hosts.Usable(kStart, "b") && !hosts.Barred("a"));
}

TEST(TheLossOfAWholeHostIsOneFailureHoweverManyWorkersItHad) {
  Hosts hosts = TwoHosts({});
  for (int loss = 0; loss < 3; ++loss) {
    const TimePoint now = kStart + loss * kSecond;
    EXPECT_TRUE(hosts.Usable(now, "a"));
    for (int worker = 0; worker < 8; ++worker) hosts.OnFailure(now + worker, "a");
  }
  EXPECT_TRUE(!hosts.Usable(kStart + 11 * kSecond, "a"));
  EXPECT_TRUE(hosts.Usable(kStart + 12 * kSecond, "a"));
}

}  // namespace
}  // namespace tfring::membership::hosts_test
