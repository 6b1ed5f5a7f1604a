#include "ops/runtime/protocol/tree/tree_topology.h"

#include <algorithm>

#include "tests/cc/test.h"

namespace tfring {
namespace {

// The smallest d with fan_out to the power of d at least size.
int CeilLog(int size, int fan_out) {
  int depth = 0;
  for (int64_t reach = 1; reach < size; reach *= fan_out) ++depth;
  return depth;
}

void CheckTree(int size, int fan_out) {
  int deepest = 0;
  int64_t below_somebody = 0;
  for (Rank rank = 0; rank < size; ++rank) {
    const TreeTopology own(rank, size, fan_out);
    EXPECT_EQ(own.subtree().begin, rank);
    EXPECT_TRUE(own.children().size() <= static_cast<size_t>(fan_out));
    deepest = std::max(deepest, own.depth());
    Rank next = rank + 1;
    for (size_t i = 0; i < own.children().size(); ++i) {
      const RankRange child = own.children()[i];
      EXPECT_EQ(child.begin, next);
      next = child.end;
      ++below_somebody;
      EXPECT_EQ(own.ChildAbove(child.end - 1), i);
      EXPECT_EQ(own.PositionOf(child.begin), static_cast<int>(i));
      const TreeTopology theirs(child.begin, size, fan_out);
      EXPECT_EQ(theirs.parent(), rank);
      EXPECT_EQ(theirs.depth(), own.depth() + 1);
      EXPECT_TRUE(theirs.subtree() == child);
    }
    EXPECT_EQ(next, own.subtree().end);
  }
  EXPECT_EQ(below_somebody, static_cast<int64_t>(size - 1));
  EXPECT_TRUE(deepest <= CeilLog(size, fan_out));
}

TEST(EveryRankButOneHasAParentAndNoneIsFarFromIt) {
  for (int size = 1; size <= 70; ++size) {
    for (int fan_out = 2; fan_out <= 9; ++fan_out) CheckTree(size, fan_out);
  }
  CheckTree(10000, 8);
  CheckTree(10000, 10);
  CheckTree(4097, 16);
}

TEST(RankZeroHasNoParent) {
  const TreeTopology alone(0, 1, 2);
  EXPECT_EQ(alone.parent(), kNoRank);
  EXPECT_TRUE(alone.children().empty());
  EXPECT_EQ(alone.PositionOf(1), -1);
}

}  // namespace
}  // namespace tfring
