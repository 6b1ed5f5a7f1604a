// Failures of NCCL, of a device and of a peer, in every phase: all that is in flight ends in time.
#include <chrono>
#include <functional>
#include <future>
#include <new>
#include <string>
#include <thread>

#include "ops/runtime/base/clock.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/gpu/staging/staged_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_failure_test {
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
    world.AbortAll(Unavailable("rank 7 was lost"));
    for (Rank rank : {0, 1}) {
      for (uint64_t n = 1; n <= 3; ++n) {
        const Status status = world.Wait(rank, n).status;
        if (!IsFromAbort(rank, status, Unavailable("rank 7 was lost"))) {
          EXPECT_EQ(phase + status.ToString(), phase + "rank 7 was lost");
        }
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
  // Rank 1 has failed and waits for what rank 0 says, which waits for it in NCCL.
  AbortIn("failed init", false, [] {
    SetNccl("only_rank", 1);
    SetNccl("fail_init", 1);
  });
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
    SetNccl("remote_error", 1);
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
    Fake().Set("hold", 1);  // a broken device would give the tensors no memory
    Fake().Inject("sticky", 3);
    for (uint64_t n = 1; n <= 3; ++n) world.SubmitAll(Job(), FirstRanks(2), n);
    Fake().Set("hold", 0);
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

// The others are still in what this rank failed to do: the next collective of its CPU backend would
// be taken for that.
TEST(AfterAFailureTheCpuRunsNothingInItsPlace) {
  Begin();
  std::vector<CpuMemory> memory(2);
  {
    GpuWorld world(3);
    const std::vector<Rank> pair = {0, 2};
    ASSERT_EQ(world.Check(Job(), pair, 100), "");
    SetNccl("error_code", 3);
    SetNccl("only_rank", 0);
    SetNccl("fail_call", 1);
    world.SubmitAll(Job(), pair, 1);
    EXPECT_TRUE(!world.Wait(0, 1).status.ok());
    world.SubmitAll(Job(), FirstRanks(2), 2);  // the first one of these members: they meet
    Spec spec;
    spec.size = 2;
    spec.elements = {{2, std::vector<int64_t>(2, 100)}};
    for (Rank rank : {0, 1}) {
      Part part = MakePart(spec, rank, 3);
      memory[rank].Attach(&part, false);
      world.backend(rank).Submit(std::move(part.collective));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    world.AbortAll(Unavailable("rank 0 was lost"));
    for (uint64_t n : {2, 3}) {
      EXPECT_EQ(world.Wait(1, n).status.ToString(), Unavailable("rank 0 was lost").ToString());
      (void)world.Wait(0, n);
    }
    (void)world.Wait(2, 1);
  }
  End();
}

// A CPU order that has no memory for anything.
class NoMemory final : public CpuOrder {
 public:
  std::unique_ptr<CpuPlace> Reserve() override {
    class Place final : public CpuPlace {
      void Run(Collective, std::function<void(Completion)>) override { throw std::bad_alloc(); }
      void Stage(Collective) override { throw std::bad_alloc(); }
    };
    return std::make_unique<Place>();
  }
};

TEST(ACollectiveThatNoMemoryIsLeftForEnds) {
  Begin();
  {
    Framework framework(0);
    CudaDevices devices(FakeDriver(), DeviceRule());
    NoMemory order;
    NcclOptions options = FakeOptions(0);
    options.cpu_order = &order;
    std::promise<Completion> ended;
    NcclBackend backend(options, [&ended](Completion completion) { ended.set_value(completion); });
    JobMemory memory;
    Collective collective = MakeJob(Job(), FirstRanks(2), 0, 1, &memory);
    collective.device_calls.push_back({*devices.Wrap(framework.stream()), 0, 1, false, nullptr});
    backend.Submit(std::move(collective));
    auto end = ended.get_future();
    ASSERT_TRUE(end.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
    EXPECT_CONTAINS(end.get().status.message(), "rank 0 has no memory to run");
  }
  End();
}

// The kernels of a collective that was given up may still be on the device. The fake aborts.
TEST(KernelsStayLoadedUntilTheDeviceIsThrough) {
  Begin();
  auto world = std::make_unique<GpuWorld>(1);
  Job job;
  job.prescale = 2.0;
  ASSERT_EQ(world->Check(job, FirstRanks(1), 1), "");
  Fake().Set("hold", 1);
  world->SubmitAll(job, FirstRanks(1), 2);
  (void)world->Wait(0, 2, CompletionStage::kLaunched);
  std::thread release([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Fake().Set("hold", 0);
  });
  world.reset();
  release.join();
  End();
}

TEST(ABarrierNeedsNeitherDeviceNorMeeting) {
  Begin();
  {
    GpuWorld world(2);
    for (Rank rank : {0, 1}) {
      Collective collective;
      collective.sequence = 1;
      collective.path = DataPath::kDevice;
      collective.members = FirstRanks(2);
      collective.self = rank;
      world.backend(rank).Submit(std::move(collective));
    }
    for (Rank rank : {0, 1}) EXPECT_TRUE(world.Wait(rank, 1).status.ok());
    EXPECT_EQ(world.Check(Job(), FirstRanks(2), 2), "");
    EXPECT_EQ(CountNccl("kernels") > 0, true);
  }
  End();
}

// A rank that leaves gives a device time, but not for ever.
TEST(WorkOnADeviceCountsAsProgressForALimitedTime) {
  Begin();
  {
    GpuWorld world(1,
                   [](NcclOptions* options) { options->config.heartbeat_timeout = kSecond / 2; });
    Fake().Set("hold", 1);
    world.SubmitAll(Job(), FirstRanks(1), 1);
    (void)world.Wait(0, 1, CompletionStage::kLaunched);
    const int64_t launched = world.backend(0).progress();
    const auto pause = std::chrono::milliseconds(10);
    for (int i = 0; i < 1000 && world.backend(0).progress() == launched; ++i) {
      std::this_thread::sleep_for(pause);
    }
    EXPECT_TRUE(world.backend(0).progress() != launched);
    std::this_thread::sleep_for(60 * pause);
    const int64_t hangs = world.backend(0).progress();
    std::this_thread::sleep_for(30 * pause);
    EXPECT_EQ(world.backend(0).progress(), hangs);
    Fake().Set("hold", 0);
    (void)world.Wait(0, 1);
    EXPECT_TRUE(world.backend(0).progress() > hangs);
  }
  End();
}

}  // namespace
}  // namespace tfring::testing::nccl_failure_test
