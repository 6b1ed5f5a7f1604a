#include "ops/runtime/backend/algorithms/alltoall.h"

#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::alltoall_test {
namespace {

// What rank `from` sends to rank `to`: some nothing, differing in both directions.
int64_t Sent(int from, int to, int variant) {
  if (variant == 0) return 0;
  return (from * 5 + to * 3 + variant) % 4 * 25;
}

void CheckAlltoall(int size, int variant) {
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks(size);
  std::vector<std::vector<Symbol>> expected(size);
  for (int r = 0; r < size; ++r) {
    AlltoallShape shape{r, {}, {}, 10};
    for (int peer = 0; peer < size; ++peer) {
      shape.send_bytes.push_back(Sent(r, peer, variant));
      shape.recv_bytes.push_back(Sent(peer, r, variant));
      for (int64_t i = 0; i < Sent(r, peer, variant); ++i) {
        ranks[r].input.push_back(Leaf(r, peer * 1000 + i));
      }
      for (int64_t i = 0; i < Sent(peer, r, variant); ++i) {
        expected[r].push_back(Leaf(peer, r * 1000 + i));
      }
    }
    ranks[r].output.resize(expected[r].size());
    schedules.push_back(PairwiseAlltoall(shape));
    EXPECT_EQ(BytesSent(schedules[r]), Sum(shape.send_bytes) - shape.send_bytes[r]);
  }
  ASSERT_EQ(PlaySymbolically(schedules, 1, false, 11, &ranks), "");
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < expected[r].size(); ++i) {
      ASSERT_EQ(ranks[r].output[i].tree, expected[r][i].tree);
    }
  }
}

TEST(AlltoallBringsEveryBlockToItsRank) {
  for (int size = 1; size <= 9; ++size) {
    for (int variant = 0; variant < 5; ++variant) CheckAlltoall(size, variant);
  }
  CheckAlltoall(30, 1);
}

TEST(SendRecvMovesOneWayOnly) {
  for (int source : {0, 1}) {
    for (int64_t bytes : {0, 1, 1000}) {
      std::vector<SymbolicRank> ranks(2);
      for (int64_t i = 0; i < bytes; ++i) ranks[source].input.push_back(Leaf(source, i));
      ranks[1 - source].output.resize(bytes);
      const std::vector<Schedule> schedules = {SendRecv(0, source, bytes),
                                               SendRecv(1, source, bytes)};
      ASSERT_EQ(PlaySymbolically(schedules, 1, false, 1, &ranks), "");
      EXPECT_EQ(BytesSent(schedules[source]), bytes);
      EXPECT_EQ(BytesSent(schedules[1 - source]), 0);
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(ranks[1 - source].output[i].tree, Leaf(source, i).tree);
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::alltoall_test
