// What has ended on a rank: each fact is set once, and the first reason stays.
#include "ops/runtime/protocol/engine/ending.h"

#include <vector>

#include "ops/runtime/protocol/engine/peer_texts.h"
#include "ops/runtime/protocol/engine/peers.h"
#include "tests/cc/test.h"

namespace tfring::testing::ending_test {
namespace {

TEST(TheFirstReasonStays) {
  Ending ending;
  EXPECT_TRUE(ending.End(Unavailable("rank 1 is lost"), 1));
  EXPECT_TRUE(!ending.End(Cancelled("rank 2 has left"), 2));
  EXPECT_EQ(ending.ended().message(), "rank 1 is lost");
  ending.Close(Unavailable("first"), 0, 0);
  ending.Close(Unavailable("second"), kSecond, 0);
  EXPECT_EQ(ending.closed().message(), "first");
  EXPECT_TRUE(ending.Abort());
  EXPECT_TRUE(!ending.Abort());
  const Peers peers(0, 3, Config(), kSecond);
  const auto health = ending.TakeHealth(PeerTexts(0, {}, peers), kNoRank);
  ASSERT_TRUE(health != nullptr);
  EXPECT_TRUE(health->lost == std::vector<Rank>{1});
  EXPECT_TRUE(health->departed.empty());
}

TEST(ARankLeavesOnceAndAfterItsFirstDeadline) {
  Ending ending;
  ending.WantToLeave("ValueError: bad", 1 * kSecond);
  ending.WantToLeave("", 2 * kSecond);
  EXPECT_EQ(ending.wanted_deadline(), 1 * kSecond);
  EXPECT_EQ(ending.TakeWanted(), "ValueError: bad");
  EXPECT_TRUE(!ending.wants_to_leave());
  EXPECT_TRUE(ending.Leave(3 * kSecond));
  EXPECT_TRUE(!ending.Leave(4 * kSecond));
  EXPECT_EQ(ending.leave_deadline(), 3 * kSecond);
}

}  // namespace
}  // namespace tfring::testing::ending_test
