#include "ops/runtime/backend/algorithms/allgather.h"

#include <cstdint>
#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::allgather_test {
namespace {

TEST(EveryAllgatherBringsEveryBlockToEveryRank) {
  for (auto build : {RingAllgather, DirectAllgather}) {
    for (int size = 2; size <= 9; ++size) {
      for (const Blocks& blocks : BlockCases(size, 1)) {
        std::vector<Schedule> schedules;
        for (int r = 0; r < size; ++r) schedules.push_back(build({r, blocks, 10}));
        ASSERT_EQ(PlayAllgather(schedules, blocks), "");
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::allgather_test
