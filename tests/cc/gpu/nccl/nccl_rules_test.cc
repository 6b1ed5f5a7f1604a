// What must hold between the framework's stream, ours and the memory of calls. Each case fails if
// its rule is broken: tests/cc/mutations/backend.py breaks them.
#include <atomic>
#include <memory>

#include "ops/gpu/nccl/nccl_backend.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/hostile.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_rules_test {
namespace {

// The framework writes inputs, and what had the outputs' memory before, 20 ms after the call.
TEST(InputsAndOutputsThatAreStillWrittenAreWaitedFor) {
  for (const long seed : {0L, 7L}) {
    BeginHostile(seed, 5000);
    GpuWorld world(2);
    uint64_t sequence = 0;
    for (const Job& job : {SmallSum(), SmallSum({5, 0, 17}), SmallSum({40000})}) {
      ASSERT_EQ(world.Check(job, FirstRanks(2), ++sequence), "");
      ASSERT_EQ(world.Check(job, FirstRanks(2), ++sequence, true), "");
    }
  }
}

// Until then it computes, however late the other rank is.
TEST(TheFrameworkWaitsWhereItUsesTheResults) {
  BeginHostile(3, 2000);
  GpuWorld world(2);
  const Job job = SmallSum({40});
  ASSERT_EQ(world.Check(job, FirstRanks(2), 1), "");  // makes the communicator
  world.Submit(job, FirstRanks(2), 0, 2, true);
  (void)world.Wait(0, 2, CompletionStage::kLaunched);
  const CuDevicePtr more = world.framework(0).Allocate({1, 2, 3});
  const auto fetched = world.framework(0).Fetch(more, 3);
  world.framework(0).Wait();  // for ever, if the stream waited for rank 1
  EXPECT_EQ(fetched->at(2), 3);
  world.Submit(job, FirstRanks(2), 1, 2, true);
  EXPECT_EQ(world.Finish(job, FirstRanks(2), 2, true), "");
  world.framework(0).Free(more);
}

// Memory that a fused batch is packed into is used after the call has returned, and by the next
// batch; the framework's own allocator is never asked for it.
TEST(ScratchLivesAsLongAsTheDeviceUsesIt) {
  BeginHostile(3, 2000);
  GpuWorld world(2);
  std::vector<Job> jobs;
  for (int64_t n = 1; n <= 6; ++n) jobs.push_back(SmallSum({n * 50, n, n * 90}));
  for (Job& job : jobs) job.dtype = DataType::kFloat16;  // multiplied on the way: always packed
  for (Job& job : jobs) job.prescale = 0.5;
  uint64_t sequence = 0;
  for (const Job& job : jobs) world.SubmitAll(job, FirstRanks(2), ++sequence);
  sequence = 0;
  for (const Job& job : jobs) ASSERT_EQ(world.Finish(job, FirstRanks(2), ++sequence), "");
}

// One rank's allreduce whose memory is freed with the last reference to it.
struct HeldCall {
  struct Memory {
    Framework* framework;
    CuDevicePtr data;
    std::atomic<int>* freed;
    Memory(Framework* framework, CuDevicePtr data, std::atomic<int>* freed)
        : framework(framework), data(data), freed(freed) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
      framework->Wait();  // its own kernel fills the memory; nothing else waits for that
      framework->Free(data);
      ++*freed;
    }
  };

  // Submits; from then on only the backend holds the memory.
  HeldCall(GpuWorld* world, CudaDevices* devices, Rank rank, uint64_t sequence, int size,
           std::atomic<int>* freed) {
    Framework& framework = world->framework(rank);
    const Job job = [] {
      Job one = SmallSum({4000});
      one.in_place = true;
      return one;
    }();
    JobMemory buffers;
    Collective collective = MakeJob(job, FirstRanks(size), rank, sequence, &buffers);
    collective.path = DataPath::kDevice;
    data = framework.Allocate(buffers.inputs[0]);
    collective.buffers[0].input = reinterpret_cast<void*>(data);
    collective.buffers[0].output = reinterpret_cast<void*>(data);
    auto memory = std::make_shared<Memory>(&framework, data, freed);
    watch = memory;
    auto stream = devices->Wrap(framework.stream());
    EXPECT_TRUE(stream.ok());
    EXPECT_TRUE((*stream)->MarkReady().ok());
    collective.device_calls.push_back({*stream, 0, 1, false, std::move(memory)});
    world->backend(rank).Submit(std::move(collective));
  }

  CuDevicePtr data = 0;
  std::weak_ptr<Memory> watch;
};

bool Becomes(const std::atomic<int>& value, int expected) {
  for (int i = 0; i < 3000 && value != expected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return value == expected;
}

CudaDevices Devices() {
  return CudaDevices(FakeDriver(), [](CollectiveKind, DataType, ReduceOp) { return true; });
}

// The fake driver ends the process if a kernel uses memory that was freed.
TEST(TheCallsMemoryIsHeldUntilTheDeviceIsThrough) {
  BeginHostile(11, 3000);
  CudaDevices devices = Devices();
  std::atomic<int> freed{0};
  {
    GpuWorld world(2);
    for (uint64_t sequence = 1; sequence <= 6; ++sequence) {
      for (Rank r = 0; r < 2; ++r) HeldCall(&world, &devices, r, sequence, 2, &freed);
    }
    for (uint64_t sequence = 1; sequence <= 6; ++sequence) {
      for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(EndOf(world, r, sequence).status.ok());
    }
  }
  EXPECT_EQ(freed, 12);
}

TEST(MemoryThatAHangingDeviceUsesIsFreedWhenItHasFinished) {
  BeginHostile(0, 0);
  CudaDevices devices = Devices();
  std::atomic<int> freed{0};
  {
    GpuWorld world(2, [](NcclOptions* options) { options->abort_limit = 300 * kMillisecond; });
    SetNccl("hang_kernel", 1);
    SetNccl("only_rank", 0);
    SetNccl("hang_abort", 1);
    std::vector<HeldCall> calls;
    for (Rank r = 0; r < 2; ++r) calls.emplace_back(&world, &devices, r, 1, 2, &freed);
    for (Rank r = 0; r < 2; ++r) (void)world.Wait(r, 1, CompletionStage::kLaunched);
    world.AbortAll(LostRank());
    for (Rank r = 0; r < 2; ++r) {
      EXPECT_TRUE(IsFromAbort(r, EndOf(world, r, 1, 10).status, LostRank()));
      EXPECT_TRUE(!calls[r].watch.expired());
    }
    EXPECT_EQ(freed, 0);
    SetNccl("hang_abort", 0);
    EXPECT_TRUE(Becomes(freed, 2));
  }
}

// NCCL's abort waits for what the GPU was given before; the calls end without it.
TEST(MemoryBehindQueuedWorkIsFreedWhenThatIsDone) {
  BeginHostile(0, 0);
  CudaDevices devices = Devices();
  std::atomic<int> freed{0};
  {
    GpuWorld world(2, [](NcclOptions* options) { options->abort_limit = 300 * kMillisecond; });
    for (Rank r = 0; r < 2; ++r) HeldCall(&world, &devices, r, 1, 2, &freed);
    ASSERT_TRUE(Becomes(freed, 2));
    Fake().Set("hold", 1);
    for (Rank r = 0; r < 2; ++r) HeldCall(&world, &devices, r, 2, 2, &freed);
    for (Rank r = 0; r < 2; ++r) (void)world.Wait(r, 2, CompletionStage::kLaunched);
    world.AbortAll(LostRank());
    for (Rank r = 0; r < 2; ++r) {
      EXPECT_TRUE(IsFromAbort(r, EndOf(world, r, 2, 10).status, LostRank()));
    }
    EXPECT_EQ(freed, 2);
    EXPECT_EQ(CountNccl("communicators"), 2);  // their aborts wait
    Fake().Set("hold", 0);
    EXPECT_TRUE(Becomes(freed, 4));
    for (int i = 0; i < 3000 && CountNccl("communicators") > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(CountNccl("communicators"), 0);
  }
}

// The launch thread is in NCCL when its calls end without it.
TEST(MemoryThatWasNotLaunchedIsFreedWhenTheLibraryReturns) {
  BeginHostile(0, 0);
  CudaDevices devices = Devices();
  std::atomic<int> freed{0};
  {
    GpuWorld world(2, [](NcclOptions* options) {
      options->abort_limit = 100 * kMillisecond;
      options->id_limit = 3 * kSecond;
      options->config.nccl_library = TFRING_FAKES_DIR "/libnccl_id_hangs.so";
    });
    std::vector<HeldCall> calls;
    for (Rank r = 0; r < 2; ++r) calls.emplace_back(&world, &devices, r, 1, 2, &freed);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.AbortAll(LostRank());
    for (Rank r = 0; r < 2; ++r) (void)EndOf(world, r, 1, 10);
    EXPECT_TRUE(!calls[0].watch.expired());
    EXPECT_TRUE(Becomes(freed, 2));
  }
}

// Host functions are lost, or do not run after an error of the device.
TEST(TheEndIsSeenWithoutHostFunctions) {
  BeginHostile(0, 100);
  GpuWorld world(2);
  for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
    world.SubmitAll(SmallSum(), FirstRanks(2), sequence);
    for (Rank r = 0; r < 2; ++r) (void)EndOf(world, r, sequence, 10);
    EXPECT_EQ(world.Finish(SmallSum(), FirstRanks(2), sequence), "");
    Fake().Inject("lost_host_function", 1);
  }
  Fake().Set("hold", 1);
  world.SubmitAll(SmallSum(), FirstRanks(2), 3);
  Fake().Inject("sticky", 2);
  Fake().Set("hold", 0);
  int device_errors = 0;
  Rank broken = -1;
  for (int tries = 0; tries < 10000 && broken < 0; ++tries) {
    for (Rank r = 0; r < 2; ++r) {
      if (world.Has(r, 3, CompletionStage::kEnded)) broken = r;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  world.AbortAll(LostRank());
  for (Rank r = 0; r < 2; ++r) {
    const Status status = EndOf(world, r, 3, 10).status;
    EXPECT_TRUE(!status.ok());
    device_errors += status.message().find("GPU") != std::string::npos ? 1 : 0;
  }
  EXPECT_TRUE(broken >= 0);
  EXPECT_TRUE(device_errors >= 1);
  Fake().Reset();
}

// NCCL says that a peer is gone, not which one; nobody else may be blamed for it.
TEST(ARemoteErrorSuspectsAnUnknownPeer) {
  BeginHostile(0, 0);
  SetNccl("remote_error", 1);
  GpuWorld world(3);
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(3), 1), "");
  SetNccl("kill_rank", 2);
  world.SubmitAll(SmallSum(), FirstRanks(3), 2);
  for (Rank r = 0; r < 2; ++r) {
    const Completion ended = EndOf(world, r, 2, 10);
    EXPECT_TRUE(ended.status.code() == StatusCode::kUnavailable);
    EXPECT_TRUE(ended.suspects_unknown_peer);
    EXPECT_EQ(ended.suspect, kNoRank);
  }
  world.backend(2).Abort(LostRank());
  EXPECT_CONTAINS(EndOf(world, 2, 2, 10).status.ToString(), "rank 1 is lost");
}

// Overlapping lists of members, many in flight, one kernel at a time on each GPU.
TEST(AllRanksKeepTheGlobalOrderAmongCommunicators) {
  BeginHostile(5, 300);
  GpuWorld world(3);
  SetNccl("kernel_slots", 1);
  const std::vector<std::vector<Rank>> lists = {{0, 1}, {1, 2}, {0, 2}, {0, 1, 2}};
  uint64_t sequence = 0;
  for (int round = 0; round < 5; ++round) {
    for (const auto& members : lists) world.SubmitAll(SmallSum(), members, ++sequence);
  }
  sequence = 0;
  for (int round = 0; round < 5; ++round) {
    for (const auto& members : lists) {
      ++sequence;
      for (const Rank r : members) (void)EndOf(world, r, sequence, 10);
      ASSERT_EQ(world.Finish(SmallSum(), members, sequence), "");
    }
  }
  EXPECT_EQ(CountNccl("mismatches"), 0);
}

}  // namespace
}  // namespace tfring::testing::nccl_rules_test
