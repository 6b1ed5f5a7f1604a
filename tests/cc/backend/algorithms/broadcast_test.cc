#include "ops/runtime/backend/algorithms/broadcast.h"

#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::broadcast_test {
namespace {

TEST(EveryBroadcastBringsTheRootsDataToEveryRank) {
  for (auto build : {TreeBroadcast, ChainBroadcast}) {
    for (int size = 2; size <= 9; ++size) {
      for (int root = 0; root < size; ++root) {
        for (int64_t bytes : {0, 1, 100, 1001}) {
          std::vector<Schedule> schedules;
          std::vector<SymbolicRank> ranks = Inputs(size, bytes);
          for (SymbolicRank& rank : ranks) rank.output.resize(bytes);
          for (int r = 0; r < size; ++r) schedules.push_back(build({r, size, root, bytes, 64}));
          ASSERT_EQ(PlaySymbolically(schedules, 1, bytes == 100, 5, &ranks), "");
          for (const SymbolicRank& rank : ranks) {
            for (int64_t i = 0; i < bytes; ++i) {
              ASSERT_EQ(rank.output[i].tree, Leaf(root, i).tree);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::broadcast_test
