// Many collectives in flight at once: late streams, several communicators, early results.
#include <string>
#include <utility>

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_order_test {
namespace {

void Begin(long seed) {
  Fake().Reset();
  ResetNccl();
  Fake().Set("seed", seed);
  Fake().Set("delay_us", 300);
}

// Results are not there when a collective is launched, and no more than 32 are.
TEST(LaunchedIsNotEnded) {
  Begin(1);
  GpuWorld world(2);
  ASSERT_EQ(world.Check(Job(), FirstRanks(2), 1000), "");
  Fake().Set("hold", 1);
  for (uint64_t n = 0; n < 40; ++n) world.SubmitAll(Job(), FirstRanks(2), n);
  for (uint64_t n = 0; n < 32; ++n) (void)world.Wait(0, n, CompletionStage::kLaunched);
  EXPECT_TRUE(!world.Has(0, 32, CompletionStage::kLaunched));
  EXPECT_TRUE(!world.Has(0, 0, CompletionStage::kEnded));
  Fake().Set("hold", 0);
  for (uint64_t n = 0; n < 40; ++n) {
    EXPECT_EQ(world.Finish(Job(), FirstRanks(2), n), "");
    EXPECT_EQ(world.Count(1, n, CompletionStage::kLaunched), 1);
  }
}

TEST(AShutdownEndsCommunicatorsInOrder) {
  Begin(1);
  {
    GpuWorld world(3);
    ASSERT_EQ(world.Check(Job(), FirstRanks(3), 1), "");
    ASSERT_EQ(world.Check(Job(), {0, 2}, 2), "");
    EXPECT_EQ(CountNccl("communicators"), 5);
  }
  EXPECT_EQ(CountNccl("destroys"), 5);
  EXPECT_EQ(CountNccl("aborts"), 0);
  EXPECT_EQ(CountNccl("communicators"), 0);
}

}  // namespace
}  // namespace tfring::testing::nccl_order_test
