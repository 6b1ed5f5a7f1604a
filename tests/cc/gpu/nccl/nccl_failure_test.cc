// Failures of NCCL, of a device and of a peer, in every phase: all that is in flight ends in time.
#include <chrono>
#include <future>
#include <new>
#include <string>
#include <thread>

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_failure_test {
namespace {

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
  std::vector<JobMemory> memory(2);
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
    for (Rank rank : {0, 1}) {
      world.backend(rank).Submit(MakeJob(Job(), FirstRanks(2), rank, 3, &memory[rank]));
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
