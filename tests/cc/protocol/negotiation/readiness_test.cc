#include "ops/runtime/protocol/negotiation/readiness.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::readiness_test {
namespace {

TEST(MemoryFollowsTheRequestsThatHaveComeAndNotTheMembers) {
  std::vector<Rank> members(1000);
  std::iota(members.begin(), members.end(), 0);
  const auto agreement = std::make_shared<Agreement>();
  Readiness readiness;
  const auto add = [&](Rank rank, const std::string& name) {
    RankRequest by_id;
    by_id.cached = agreement;
    return readiness.Add(0, name, members, rank, std::move(by_id));
  };
  for (int i = 0; i < 100; ++i) add(999, "name " + std::to_string(i));
  EXPECT_TRUE(readiness.bytes() < 100 * 7000);
  for (Rank rank = 0; rank < 999; ++rank) add(rank, "name 5");
  EXPECT_TRUE(readiness.bytes() > 100 * 4000 + 1000 * sizeof(RankRequest));
  const PendingTensor* pending = readiness.FindByName(0, "name 5");
  EXPECT_EQ(pending->ready, size_t{1000});
  EXPECT_EQ(pending->LastReady(), 998);
  EXPECT_TRUE(pending->CommonAgreement() == agreement.get());
  while (!readiness.all().empty()) readiness.Erase(readiness.all().begin()->first);
  EXPECT_EQ(readiness.bytes(), size_t{0});
}

TEST(EqualRequestsInFullAreKeptOnce) {
  std::vector<Rank> members(1000);
  std::iota(members.begin(), members.end(), 0);
  Readiness readiness;
  const auto add = [&](Rank rank, const std::string& site) {
    RankRequest full;
    Request request = Allreduce("x");
    request.call_site = site;
    full.full = std::make_shared<Request>(std::move(request));
    return readiness.Add(0, "x", members, rank, std::move(full));
  };
  for (Rank rank = 0; rank < 500; ++rank) add(rank, "train.py:1");
  const size_t alike = readiness.bytes();
  EXPECT_TRUE(alike < 1000 * (sizeof(RankRequest) + sizeof(Rank)) + 4000);
  for (Rank rank = 500; rank < 600; ++rank) add(rank, "train.py:" + std::to_string(rank));
  EXPECT_TRUE(readiness.bytes() > alike + 100 * sizeof(Request));
  const PendingTensor* pending = readiness.FindByName(0, "x");
  EXPECT_EQ(pending->ready, size_t{600});
  EXPECT_EQ(pending->CallSiteOf(0), "train.py:1");
  EXPECT_EQ(pending->CallSiteOf(499), "train.py:1");
  EXPECT_EQ(pending->CallSiteOf(599), "train.py:599");
}

}  // namespace
}  // namespace tfring::testing::readiness_test
