// Process sets that are removed give their communicators back.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/hostile.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_disband_test {
namespace {

bool Becomes(const char* what, long expected) {
  for (int i = 0; i < 3000 && CountNccl(what) != expected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return CountNccl(what) == expected;
}

TEST(TheCommunicatorIsDestroyedAfterItsLastCollective) {
  BeginHostile(0, 0);
  GpuWorld world(3);
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(2), 1), "");
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(3), 2), "");
  EXPECT_EQ(CountNccl("communicators"), 5);
  Fake().Set("hold", 1);
  world.SubmitAll(SmallSum(), FirstRanks(2), 3);
  world.Disband(FirstRanks(2));
  world.SubmitAll(SmallSum(), FirstRanks(3), 4);
  for (Rank r = 0; r < 2; ++r) (void)world.Wait(r, 3, CompletionStage::kLaunched);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(CountNccl("destroys"), 0);
  Fake().Set("hold", 0);
  EXPECT_EQ(world.Finish(SmallSum(), FirstRanks(2), 3), "");
  EXPECT_EQ(world.Finish(SmallSum(), FirstRanks(3), 4), "");
  EXPECT_TRUE(Becomes("destroys", 2));
  EXPECT_TRUE(Becomes("communicators", 3));
  EXPECT_EQ(CountNccl("aborts"), 0);
  // A new set of the same ranks makes a new one.
  EXPECT_EQ(world.Check(SmallSum(), FirstRanks(2), 5), "");
  EXPECT_EQ(CountNccl("inits"), 7);
  // Of a set that had no collective on GPUs there is nothing to destroy.
  world.Disband({1, 2});
  EXPECT_EQ(world.Check(SmallSum(), FirstRanks(3), 6), "");
  EXPECT_EQ(CountNccl("communicators"), 5);
}

// In the order of plans, among collectives of other sets on devices that run one kernel at a time.
TEST(SetsThatComeAndGoOnLateStreams) {
  const std::vector<std::vector<Rank>> sets = {{0, 1, 2}, {0, 1}, {1, 2}, {0, 2}};
  for (long seed = 1; seed <= 3; ++seed) {
    BeginHostile(seed, 300);
    SetNccl("kernel_slots", 1);
    GpuWorld world(3);
    for (uint64_t n = 0; n < 40; ++n) {
      world.SubmitAll(SmallSum(), sets[n % 4], n);
      if (n % 5 == 4) world.Disband(sets[1 + n % 3]);
    }
    for (uint64_t n = 0; n < 40; ++n) ASSERT_EQ(world.Finish(SmallSum(), sets[n % 4], n), "");
    EXPECT_TRUE(CountNccl("destroys") >= 4);
    for (const char* bad : {"mismatches", "early_calls", "bad_handles", "aborts"}) {
      EXPECT_EQ(CountNccl(bad), 0);
    }
  }
}

TEST(AFailureEndsTheWaitForTheLastCollective) {
  BeginHostile(0, 0);
  {
    GpuWorld world(2);
    ASSERT_EQ(world.Check(SmallSum(), FirstRanks(2), 1), "");
    SetNccl("hang_kernel", 1);
    world.SubmitAll(SmallSum(), FirstRanks(2), 2);
    world.Disband(FirstRanks(2));
    for (Rank r = 0; r < 2; ++r) (void)world.Wait(r, 2, CompletionStage::kLaunched);
    world.AbortAll(LostRank());
    for (Rank r = 0; r < 2; ++r) {
      EXPECT_TRUE(IsFromAbort(r, EndOf(world, r, 2, 10).status, LostRank()));
    }
  }
  EXPECT_EQ(CountNccl("destroys"), 0);
  EXPECT_EQ(CountNccl("communicators"), 0);
}

}  // namespace
}  // namespace tfring::testing::nccl_disband_test
