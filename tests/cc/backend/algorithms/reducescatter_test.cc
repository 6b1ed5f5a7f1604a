#include "ops/runtime/backend/algorithms/reducescatter.h"

#include <string>
#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::reducescatter_test {
namespace {

struct NamedReducescatter {
  Schedule (*build)(const ReducescatterShape&);
  Order order;
};
constexpr NamedReducescatter kReducescatters[] = {{DirectReducescatter, Order::kCanonical},
                                                  {RingReducescatter, Order::kRing}};

void CheckReducescatter(const NamedReducescatter& algorithm, const Blocks& blocks,
                        int64_t piece_bytes, uint32_t seed) {
  const int size = static_cast<int>(blocks.size());
  const int64_t element = 4;
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks = Inputs(size, Sum(blocks) / element);
  for (int r = 0; r < size; ++r) {
    schedules.push_back(algorithm.build({r, blocks, element, piece_bytes}));
    ranks[r].output.resize(blocks[r] / element);
    EXPECT_EQ(BytesSent(schedules[r]), Sum(blocks) - blocks[r]);
  }
  const std::string what = std::string(schedules[0].algorithm) + " of " + std::to_string(size);
  ASSERT_EQ(what + PlaySymbolically(schedules, element, false, seed, &ranks), what);
  int64_t at = 0;
  for (int r = 0; r < size; ++r) {
    for (const Symbol& actual : ranks[r].output) {
      ASSERT_TRUE(IsFinished(actual, SumOf(algorithm.order, size, r, at++)));
    }
  }
}

TEST(EveryReducescatterGivesEachOwnerTheSumOfItsBlock) {
  for (const NamedReducescatter& algorithm : kReducescatters) {
    for (int size = 2; size <= 9; ++size) {
      uint32_t seed = 0;
      for (const Blocks& blocks : BlockCases(size, 4)) {
        for (int64_t piece : {1, 50, 1 << 20}) CheckReducescatter(algorithm, blocks, piece, ++seed);
      }
    }
    CheckReducescatter(algorithm, Blocks(23, 40), 16, 1);
  }
  // Pieces of a direct exchange are not smaller than this.
  CheckReducescatter(kReducescatters[0], {400000, 0, 200004}, 1, 1);
}

}  // namespace
}  // namespace tfring::testing::reducescatter_test
