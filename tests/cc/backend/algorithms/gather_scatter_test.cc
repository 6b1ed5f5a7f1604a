#include "ops/runtime/backend/algorithms/gather_scatter.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::gather_scatter_test {
namespace {

void CheckRooted(Schedule (*build)(const RootedShape&), bool gather, const Blocks& blocks,
                 int root) {
  const int size = static_cast<int>(blocks.size());
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks(size);
  int64_t at = 0;
  int64_t sent = 0;
  for (int r = 0; r < size; ++r) {
    schedules.push_back(build({r, root, blocks, 16}));
    sent += BytesSent(schedules[r]);
    // The numbers of the elements are those on the root's side.
    std::vector<Symbol>& own = gather ? ranks[r].input : ranks[r].output;
    own.resize(blocks[r]);
    for (int64_t i = 0; i < blocks[r]; ++i, ++at) {
      if (gather) own[i] = Leaf(0, at);
      if (!gather) ranks[root].input.push_back(Leaf(0, at));
    }
  }
  if (gather) ranks[root].output.resize(at);
  const std::string what = schedules[0].algorithm;
  ASSERT_EQ(what + PlaySymbolically(schedules, 1, false, 5, &ranks), what);
  at = 0;
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < blocks[r]; ++i, ++at) {
      const Symbol& actual = gather ? ranks[root].output[at] : ranks[r].output[i];
      ASSERT_EQ(actual.tree, Leaf(0, at).tree);
    }
  }
  EXPECT_EQ(sent, Sum(blocks) - blocks[root]);
}

TEST(EveryGatherAndScatterMovesEachBlockOnce) {
  for (int size = 2; size <= 9; ++size) {
    for (int root = 0; root < size; ++root) {
      for (const Blocks& blocks : BlockCases(size, 1)) {
        CheckRooted(DirectGather, true, blocks, root);
        CheckRooted(DirectScatter, false, blocks, root);
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::gather_scatter_test
