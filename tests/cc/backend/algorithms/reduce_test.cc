#include "ops/runtime/backend/algorithms/reduce.h"

#include <string>
#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::reduce_test {
namespace {

using ReduceBuilder = Schedule (*)(const ReduceShape&, int);
struct NamedReduce {
  ReduceBuilder build;
  Order order;
};
constexpr NamedReduce kReduces[] = {{DirectReduce, Order::kCanonical},
                                    {TreeReduce, Order::kCanonical},
                                    {ChainReduce, Order::kRing}};

void CheckReduce(const NamedReduce& algorithm, int size, int root, int64_t elements,
                 int64_t piece_bytes, bool in_place) {
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks = Inputs(size, elements);
  for (int r = 0; r < size; ++r) {
    schedules.push_back(algorithm.build({r, size, elements, 4, piece_bytes}, root));
    if (r == root) ranks[r].output.resize(elements);
    EXPECT_TRUE(BytesSent(schedules[r]) <= elements * 4);
    if (algorithm.order != Order::kCanonical) {
      EXPECT_EQ(BytesSent(schedules[r]), r == root ? 0 : elements * 4);
    }
  }
  const std::string what = std::string(schedules[0].algorithm) + " of " + std::to_string(size) +
                           " to " + std::to_string(root);
  const uint32_t seed = static_cast<uint32_t>(size * 10 + root);
  ASSERT_EQ(what + PlaySymbolically(schedules, 4, in_place, seed, &ranks), what);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < elements; ++i) {
      if (r == root) {
        const Symbol expected = SumOf(algorithm.order, size, root, i);
        ASSERT_TRUE(IsFinished(ranks[r].output[i], expected));
      } else if (in_place) {
        ASSERT_EQ(ranks[r].output[i].tree, Leaf(r, i).tree);  // not written
      }
    }
  }
}

TEST(EveryReduceBringsTheSumToTheRootOnly) {
  for (const NamedReduce& algorithm : kReduces) {
    for (int size = 2; size <= 9; ++size) {
      for (int root = 0; root < size; ++root) {
        for (int64_t elements : {0, 1, size + 1, 300}) {
          CheckReduce(algorithm, size, root, elements, 50, elements % 2 == 0);
        }
      }
    }
    CheckReduce(algorithm, 21, 13, 100, 64, true);
    CheckReduce(algorithm, 3, 1, 30001, 1 << 10, true);
  }
}

}  // namespace
}  // namespace tfring::testing::reduce_test
