// Failures of NCCL, of a device and of a peer, in every phase: all that is in flight ends in time.
#include <string>

#include "ops/runtime/base/clock.h"
#include "tests/cc/backend/nccl/gpu_world.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

constexpr Duration kLimit = 5 * kSecond;  // of the promise that is tested here

void Begin() {
  Fake().Reset();
  ResetNccl();
  Fake().Set("seed", 1);
  Fake().Set("delay_us", 100);
}

// Leaves the settings such that the next world is not concerned.
void End() {
  ResetNccl();
  Fake().Reset();
}

// Submits some collectives and, once `rank` has launched or at once, aborts all ranks.
void AbortIn(const std::string& phase, bool launched, const std::function<void()>& fault) {
  Begin();
  {
    GpuWorld world(2);
    if (launched) ASSERT_EQ(world.Check(Job(), FirstRanks(2), 100), "");
    fault();
    for (uint64_t n = 1; n <= 3; ++n) world.SubmitAll(Job(), FirstRanks(2), n);
    if (launched && phase != "group") (void)world.Wait(0, 1, CompletionStage::kLaunched);
    const TimePoint start = MonotonicNow();
    for (Rank rank : {0, 1}) world.backend(rank).Abort(Unavailable("rank 7 was lost"));
    for (Rank rank : {0, 1}) {
      for (uint64_t n = 1; n <= 3; ++n) {
        EXPECT_EQ(phase + world.Wait(rank, n).status.ToString(),
                  phase + Unavailable("rank 7 was lost").ToString());
        EXPECT_EQ(world.Count(rank, n, CompletionStage::kEnded), 1);
      }
    }
    EXPECT_TRUE(MonotonicNow() - start < kLimit);
    SetNccl("hang_abort", 0);
    SetNccl("hang_group", 0);
  }
  End();
}

TEST(AnAbortEndsEverythingInEveryPhase) {
  AbortIn("init", false, [] { SetNccl("hang_init", 1); });
  AbortIn("group", true, [] { SetNccl("hang_group", 1); });
  AbortIn("kernel", true, [] { SetNccl("hang_kernel", 1); });
  AbortIn("before", false, [] {});
}

TEST(AnAbortThatHangsIsLeftAlone) {
  AbortIn("abort", true, [] {
    SetNccl("hang_kernel", 1);
    SetNccl("hang_abort", 1);
  });
}

// NCCL does not know which peer it is; the control plane does.
TEST(ARemoteErrorSuspectsAPeerOfUnknownName) {
  Begin();
  {
    GpuWorld world(2);
    ASSERT_EQ(world.Check(Job(), FirstRanks(2), 100), "");
    SetNccl("only_rank", 0);
    SetNccl("error_code", 6);
    SetNccl("error_at_kernel", 1);
    world.SubmitAll(Job(), FirstRanks(2), 1);
    const TimePoint start = MonotonicNow();
    const Completion completion = world.Wait(0, 1);
    EXPECT_EQ(StatusCodeName(completion.status.code()), std::string("Unavailable"));
    EXPECT_TRUE(completion.suspects_unknown_peer);
    EXPECT_EQ(completion.suspect, kNoRank);
    EXPECT_TRUE(MonotonicNow() - start < kLimit);
    // The other member sees it go.
    EXPECT_TRUE(world.Wait(1, 1).suspects_unknown_peer);
    EXPECT_TRUE(MonotonicNow() - start < kLimit);
    world.SubmitAll(Job(), FirstRanks(2), 2);
    EXPECT_TRUE(!world.Wait(0, 2).status.ok());
  }
  End();
}

TEST(AStickyErrorOfTheDeviceEndsEverything) {
  Begin();
  {
    GpuWorld world(2);
    ASSERT_EQ(world.Check(Job(), FirstRanks(2), 100), "");
    Fake().Set("fault_device", 0);
    Fake().Inject("sticky", 3);
    for (uint64_t n = 1; n <= 3; ++n) world.SubmitAll(Job(), FirstRanks(2), n);
    const TimePoint start = MonotonicNow();
    for (uint64_t n = 1; n <= 3; ++n) {
      const Completion completion = world.Wait(0, n);
      if (completion.status.ok()) continue;
      EXPECT_CONTAINS(completion.status.message(), "ILLEGAL_ADDRESS");
      EXPECT_TRUE(!completion.suspects_unknown_peer);
    }
    EXPECT_TRUE(!world.Wait(0, 3).status.ok());
    EXPECT_TRUE(MonotonicNow() - start < kLimit);
    world.backend(1).Abort(Unavailable("rank 0 was lost"));
    for (uint64_t n = 1; n <= 3; ++n) (void)world.Wait(1, n);
  }
  End();
}

TEST(AnErrorOfACallEndsEverythingOnce) {
  Begin();
  {
    GpuWorld world(2);
    ASSERT_EQ(world.Check(Job(), FirstRanks(2), 100), "");
    SetNccl("error_code", 3);
    SetNccl("only_rank", 0);
    SetNccl("fail_call", 1);
    world.SubmitAll(Job(), FirstRanks(2), 1);
    const Completion completion = world.Wait(0, 1);
    EXPECT_EQ(StatusCodeName(completion.status.code()), std::string("Internal"));
    EXPECT_CONTAINS(completion.status.message(), "ncclAllReduce of ranks 0, 1");
    EXPECT_EQ(world.Count(0, 1, CompletionStage::kLaunched), 0);
    world.backend(1).Abort(Unavailable("rank 0 was lost"));
    (void)world.Wait(1, 1);
  }
  End();
}

TEST(ACommunicatorThatIsNeverMadeHasALimit) {
  Begin();
  {
    GpuWorld world(2, [](NcclOptions* options) { options->init_limit = 200 * kMillisecond; });
    SetNccl("hang_init", 1);
    world.SubmitAll(Job(), FirstRanks(2), 1);
    EXPECT_CONTAINS(world.Wait(0, 1).status.message(),
                    "NCCL made no communicator of ranks 0, 1 within 0.2 s");
    (void)world.Wait(1, 1);
  }
  End();
}

}  // namespace
}  // namespace tfring::testing
