// The fake NCCL's manners: what it does to callers that do not poll, do not agree, or lose a peer.
#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/fakes/nccl_world.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_behaviour_test {
namespace {

const FakeNccl& nccl = FakeNccl::Get();

// Settings of one case; all as before at its end.
struct With {
  explicit With(std::vector<std::pair<const char*, long>> settings) {
    nccl.Reset();
    for (const auto& [what, value] : settings) nccl.Set(what, value);
  }
  ~With() { nccl.Reset(); }
};

ncclResult_t AllReduceOne(void* data, ncclComm_t comm, void* stream) {
  return nccl.AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream);
}

ncclResult_t ErrorOf(ncclComm_t comm) {
  ncclResult_t error = ncclSuccess;
  EXPECT_EQ(nccl.CommGetAsyncError(comm, &error), ncclSuccess);
  return error;
}

ncclResult_t WaitForError(ncclComm_t comm, int seconds = 20) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (ErrorOf(comm) == ncclSuccess && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ErrorOf(comm);
}

void Abort(GpuRank& rank) {
  EXPECT_EQ(nccl.CommAbort(rank.comm), ncclSuccess);
  rank.comm = nullptr;
}

TEST(NothingIsEnqueuedBeforeTheLastPoll) {
  const With with({{"in_progress_polls", 3}});
  RunNcclRanks(2, false, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{rank.rank + 1});
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclInProgress);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclInvalidArgument);
    for (int poll = 0; poll < 3; ++poll) {
      EXPECT_EQ(rank.Get<int32_t>(data, 1)[0], rank.rank + 1);
      EXPECT_EQ(ErrorOf(rank.comm), ncclInProgress);
    }
    EXPECT_EQ(ErrorOf(rank.comm), ncclSuccess);
    EXPECT_EQ(rank.Get<int32_t>(data, 1)[0], 3);
    EXPECT_EQ(nccl.CommFinalize(rank.comm), ncclInProgress);
    EXPECT_EQ(rank.Poll(), ncclSuccess);
  });
  EXPECT_EQ(nccl.Count("early_calls"), 2);
  EXPECT_EQ(nccl.Count("communicators"), 0);
}

TEST(InitTakesItsTimeAndCanBeAborted) {
  const With with({{"hang_init", 1}});
  ncclUniqueId id;
  EXPECT_EQ(nccl.GetUniqueId(&id), ncclSuccess);
  RunGpuRanks(2, [&](GpuRank& rank) {
    ncclConfig_t config = NcclConfig(false);
    EXPECT_EQ(nccl.CommInitRankConfig(&rank.comm, 2, id, rank.rank, &config), ncclInProgress);
    for (int poll = 0; poll < 20; ++poll) {
      EXPECT_EQ(ErrorOf(rank.comm), ncclInProgress);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Abort(rank);
  });
}

TEST(AConfigurationThatWasNotInitializedIsRefused) {
  RunGpuRanks(1, [&](GpuRank& rank) {
    ncclUniqueId id;
    EXPECT_EQ(nccl.GetUniqueId(&id), ncclSuccess);
    ncclConfig_t config{};
    EXPECT_EQ(nccl.CommInitRankConfig(&rank.comm, 1, id, 0, &config), ncclInvalidArgument);
    config = NcclConfig(true);
    config.minCTAs = 0;
    EXPECT_EQ(nccl.CommInitRankConfig(&rank.comm, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT_TRUE(rank.comm == nullptr);
  });
}

TEST(TwoRanksOnOneGpu) {
  const With with({{"version", 23007}});
  for (const bool shared : {false, true}) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", shared ? "1" : "0", 1);
    ncclUniqueId id;
    EXPECT_EQ(nccl.GetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        GpuRank rank(r, 2, 1);
        EXPECT_EQ(rank.Init(id, true), shared ? ncclSuccess : ncclInvalidUsage);
        EXPECT_EQ(nccl.CommDestroy(rank.comm), ncclSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  EXPECT_CONTAINS(nccl.GetLastError(nullptr), "Duplicate GPU");
}

TEST(RanksThatCallDifferentThingsAreTold) {
  const With with({{"remote_error", 1}});
  RunNcclRanks(2, true, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{1, 2, 3});
    const size_t count = rank.rank == 0 ? 2 : 3;
    EXPECT_EQ(nccl.AllReduce(data, data, count, ncclInt32, ncclSum, rank.comm, rank.stream), 0);
    EXPECT_EQ(WaitForError(rank.comm), ncclInvalidUsage);
    EXPECT_CONTAINS(nccl.GetLastError(rank.comm), "allreduce of 3 int32");
    Abort(rank);
  });
  RunNcclRanks(2, true, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{1, 2, 3});
    if (rank.rank == 0) EXPECT_EQ(nccl.Send(data, 3, ncclInt32, 1, rank.comm, rank.stream), 0);
    if (rank.rank == 1) EXPECT_EQ(nccl.Recv(data, 2, ncclInt32, 0, rank.comm, rank.stream), 0);
    if (rank.rank == 1) EXPECT_EQ(WaitForError(rank.comm), ncclInvalidUsage);
    if (rank.rank == 0) EXPECT_EQ(WaitForError(rank.comm), ncclRemoteError);
    Abort(rank);
  });
  EXPECT_EQ(nccl.Count("mismatches"), 3);
}

TEST(AbortOfAPeerIsARemoteErrorAndKernelsSpinUntilTheirOwnAbort) {
  const With with({{"remote_error", 1}});
  RunNcclRanks(3, true, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{1});
    if (rank.rank != 2) {
      EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(WaitForError(rank.comm), ncclRemoteError);
      EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclRemoteError);
      EXPECT_TRUE(!rank.Idle(0));
    }
    Abort(rank);
  });
}

TEST(APeerThatDiesShowsOrNot) {
  for (const bool shows : {true, false}) {
    const With with({{"remote_error", shows ? 1 : 0}});
    std::atomic<int> ready{0};
    RunNcclRanks(2, true, [&](GpuRank& rank) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      void* data = rank.Put(std::vector<int32_t>{1});
      if (rank.rank == 0) {
        nccl.Set("kill_rank", 1);
        EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
        EXPECT_EQ(shows ? WaitForError(rank.comm) : ErrorOf(rank.comm),
                  shows ? ncclRemoteError : ncclSuccess);
        EXPECT_TRUE(!rank.Idle(0));
        ++ready;
      }
      while (ready < 3) std::this_thread::yield();
      Abort(rank);
    });
  }
}

TEST(InjectedFaultsStrikeOnce) {
  const With with({});
  RunNcclRanks(1, true, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{1});
    nccl.Set("fail_call", 2);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSystemError);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
    EXPECT_TRUE(rank.Idle());
    nccl.Set("error_code", ncclInternalError);
    nccl.Set("error_at_kernel", 1);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
    EXPECT_EQ(WaitForError(rank.comm), ncclInternalError);
    EXPECT_TRUE(!rank.Idle(0));
    Abort(rank);
  });
  RunNcclRanks(1, true, [](GpuRank& rank) {
    nccl.Set("hang_kernel", 1);
    void* data = rank.Put(std::vector<int32_t>{1});
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
    EXPECT_TRUE(!rank.Idle(1));
    EXPECT_EQ(ErrorOf(rank.comm), ncclSuccess);
    Abort(rank);
  });
}

// On a GPU kernels of different communicators share its processors: where ranks start them in
// different orders, each waits for a peer that has no room.
TEST(WrongOrderOfCommunicatorsHangsWhereKernelsHaveFewSlots) {
  for (const bool same_order : {true, false}) {
    const With with({{"kernel_slots", 1}});
    ncclUniqueId second;
    EXPECT_EQ(nccl.GetUniqueId(&second), ncclSuccess);
    std::atomic<int> looked{0};
    RunNcclRanks(2, true, [&](GpuRank& rank) {
      const ncclComm_t first = rank.comm;
      EXPECT_EQ(rank.Init(second, true), ncclSuccess);
      const ncclComm_t other = rank.comm;
      void* streams[] = {rank.stream, rank.NewStream()};
      void* data = rank.Put(std::vector<int32_t>{1});
      const bool swap = !same_order && rank.rank == 1;
      // The first must have its slot before the second comes.
      EXPECT_EQ(AllReduceOne(data, swap ? other : first, streams[0]), ncclSuccess);
      if (same_order) EXPECT_TRUE(rank.Idle());
      if (!same_order) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_EQ(AllReduceOne(data, swap ? first : other, streams[1]), ncclSuccess);
      if (same_order) EXPECT_TRUE(rank.Idle());
      if (!same_order) EXPECT_TRUE(!rank.Idle(1));
      ++looked;
      while (looked < 2) std::this_thread::yield();
      EXPECT_EQ(nccl.CommAbort(first), ncclSuccess);
      Abort(rank);
    });
  }
}

TEST(AbortWaitsForKernelsThatAreBehindOtherWork) {
  const With with({});
  RunNcclRanks(1, true, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{1});
    Fake().Set("hold", 1);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
    std::atomic<bool> ended{false};
    std::thread aborting([&] {
      EXPECT_EQ(nccl.CommAbort(rank.comm), ncclSuccess);
      ended = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(!ended);
    Fake().Set("hold", 0);
    aborting.join();
    EXPECT_EQ(nccl.Count("kernels"), 0);
    rank.comm = nullptr;
  });
}

TEST(AbortDoesNotWaitForADeviceThatIsBroken) {
  const With with({});
  RunNcclRanks(1, true, [](GpuRank& rank) {
    void* data = rank.Put(std::vector<int32_t>{1});
    Fake().Set("hold", 1);
    EXPECT_EQ(AllReduceOne(data, rank.comm, rank.stream), ncclSuccess);
    Fake().Inject("sticky", 1);
    Fake().Set("hold", 0);
    EXPECT_EQ(nccl.CommAbort(rank.comm), ncclSuccess);
    EXPECT_EQ(nccl.Count("kernels"), 0);
    rank.comm = nullptr;
    Fake().Reset();
  });
}

TEST(AbortCanHangAndCanGoOnByItself) {
  const With with({{"hang_abort", 1}});
  RunNcclRanks(1, true, [](GpuRank& rank) {
    std::atomic<bool> ended{false};
    std::thread aborting([&] {
      EXPECT_EQ(nccl.CommAbort(rank.comm), ncclSuccess);
      ended = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(!ended);
    nccl.Set("hang_abort", 0);
    aborting.join();
    int number = 0;
    EXPECT_EQ(nccl.CommUserRank(rank.comm, &number), ncclInvalidArgument);
    EXPECT_EQ(nccl.Count("bad_handles"), 1);
    rank.comm = nullptr;
  });
}

TEST(NoFilesAreLeft) {
  RunNcclRanks(2, false, [](GpuRank&) {});
  DIR* folder = opendir("/dev/shm");
  ASSERT_TRUE(folder != nullptr);
  const std::string mine = "tfring_fake_nccl_" + std::to_string(getpid()) + "_";
  std::vector<std::string> left;
  while (const dirent* entry = readdir(folder)) {
    if (std::string(entry->d_name).rfind(mine, 0) == 0) left.emplace_back(entry->d_name);
  }
  closedir(folder);
  // The ids that were never used, of the cases above, go with the process.
  for (const std::string& name : left) EXPECT_TRUE(name.find('.') == std::string::npos);
}

}  // namespace
}  // namespace tfring::testing::nccl_behaviour_test
