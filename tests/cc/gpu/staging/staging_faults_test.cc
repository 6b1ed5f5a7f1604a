// What happens to staged collectives when the GPU fails, when memory runs out and when everything
// is aborted: each ends once, with a typed error, and not before the GPU is through with its
// memory.
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/gpu/staging/staging.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::staging_faults_test {
namespace {

constexpr int64_t kElements = 256;

Job AJob() {
  Job job;
  job.elements = {kElements};
  return job;
}

void ExpectInternal(const Completion& completion, const std::string& part) {
  EXPECT_EQ(static_cast<int>(completion.status.code()), static_cast<int>(StatusCode::kInternal));
  EXPECT_CONTAINS(completion.status.message(), part);
}

TEST(AStickyErrorEndsEverythingWithATypedError) {
  for (long nth : {1, 2, 3, 4, 5, 6}) {
    Fake().Reset();
    Fake().Set("seed", nth);
    GpuWorld world(1, StagingOptions());
    std::vector<Collective> parts;
    for (uint64_t n = 0; n < 3; ++n) {
      parts.push_back(world.Prepare(AJob(), FirstRanks(1), 0, n, n == 1));
    }
    world.framework(0).Wait();
    Fake().Inject("sticky", nth);  // of copies in and out, and of host functions
    for (Collective& part : parts) world.backend(0).Submit(std::move(part));
    for (uint64_t s = 0; s < 3; ++s) {
      const Completion end = world.Wait(0, s);
      if (!end.status.ok() || s == 2) ExpectInternal(end, "CUDA_ERROR_ILLEGAL_ADDRESS");
      EXPECT_EQ(world.Count(0, s, CompletionStage::kEnded), 1);
    }
    Fake().Reset();
  }
}

TEST(AFailureOnOneRankDoesNotLeaveTheOthersInTheMiddle) {
  Fake().Reset();
  std::vector<float> data(4, 1.0f);
  GpuWorld world(2, StagingOptions());
  Fake().Set("fault_device", 1);
  Collective first = world.Prepare(AJob(), FirstRanks(2), 0, 0);
  Collective second = world.Prepare(AJob(), FirstRanks(2), 1, 0);
  world.framework(1).Wait();
  Fake().Inject("sticky", 1);  // the copy to the CPU
  world.backend(1).Submit(std::move(second));
  ExpectInternal(world.Wait(1, 0), "CUDA_ERROR_ILLEGAL_ADDRESS");
  // What follows in the order fails, too: it would be taken for the one that failed.
  world.backend(1).Submit(Sum(&data, 1, 2, 1));
  ExpectInternal(world.Wait(1, 1), "CUDA_ERROR_ILLEGAL_ADDRESS");
  world.backend(0).Submit(std::move(first));
  world.backend(0).Abort(Unavailable("rank 1 was lost"));
  EXPECT_EQ(world.Wait(0, 0).status.ToString(), Unavailable("rank 1 was lost").ToString());
  Fake().Reset();
}

TEST(OutOfPinnedMemoryIsATypedError) {
  Fake().Reset();
  GpuWorld world(1, StagingOptions());
  Collective part = world.Prepare(AJob(), FirstRanks(1), 0, 0);
  world.framework(0).Wait();
  Fake().Inject("out_of_memory", 1);
  world.backend(0).Submit(std::move(part));
  const Completion end = world.Wait(0, 0);
  EXPECT_EQ(static_cast<int>(end.status.code()), static_cast<int>(StatusCode::kResourceExhausted));
  EXPECT_CONTAINS(end.status.message(), "rank 0: allreduce: allocating");
}

// Nothing may be reported as ended while the device copies.
TEST(AnAbortWaitsForCopiesThatAreUnderWay) {
  for (bool after_the_collective : {false, true}) {
    Fake().Reset();
    std::vector<float> data(4, 1.0f);
    GpuWorld world(1, StagingOptions());
    Collective part = world.Prepare(AJob(), FirstRanks(1), 0, 0);
    world.framework(0).Wait();
    Fake().Set("delay_us", after_the_collective ? 100 * 1000 : 300 * 1000);
    world.backend(0).Submit(std::move(part));
    world.backend(0).Submit(Sum(&data, 0, 1, 1));
    if (after_the_collective) {
      (void)world.Wait(0, 0, CompletionStage::kLaunched);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(!world.Has(0, 0, CompletionStage::kEnded));
    world.backend(0).Abort(Aborted("the step failed"));
    if (!after_the_collective) {
      // It does not hold up what came after it.
      EXPECT_EQ(world.Wait(0, 1).status.ToString(), Aborted("the step failed").ToString());
      EXPECT_TRUE(!world.Has(0, 0, CompletionStage::kEnded));
    }
    const Completion end = world.Wait(0, 0);
    const Status expected = after_the_collective ? OkStatus() : Aborted("the step failed");
    EXPECT_EQ(end.status.ToString(), expected.ToString());
    world.Free(0, 0);  // the fake ends the process if the memory is still used
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(ACopyThatHangsIsGivenUpAndItsMemoryKeptUntilItHasEnded) {
  Fake().Reset();
  auto keeps = std::make_shared<int>(0);
  GpuWorld world(1, StagingOptions());
  Collective collective = world.Prepare(AJob(), FirstRanks(1), 0, 0);
  world.framework(0).Wait();
  Fake().Set("hang_us", 7 * 1000 * 1000);
  Fake().Inject("hang", 1);
  collective.device_calls[0].keeps = keeps;
  world.backend(0).Submit(std::move(collective));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto begin = std::chrono::steady_clock::now();
  world.backend(0).Abort(Unavailable("rank 1 was lost"));
  const Completion end = world.Wait(0, 0);
  EXPECT_TRUE(std::chrono::steady_clock::now() - begin > std::chrono::seconds(4));
  EXPECT_EQ(end.status.ToString(), Unavailable("rank 1 was lost").ToString());
  EXPECT_TRUE(keeps.use_count() > 1);
  for (int i = 0; i < 3000 && keeps.use_count() > 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(keeps.use_count(), 1L);
}

TEST(WhatComesAfterAnAbortEndsWithIt) {
  Fake().Reset();
  GpuWorld world(1, StagingOptions());
  world.backend(0).Abort(Aborted("over"));
  world.SubmitAll(AJob(), FirstRanks(1), 0);
  EXPECT_EQ(world.Wait(0, 0).status.ToString(), Aborted("over").ToString());
  world.framework(0).Wait();
  EXPECT_EQ(Fake().Count("d2h_copies"), 0L);
}

TEST(OnlyWhatIsNeededIsCopied) {
  Fake().Reset();
  GpuWorld world(2, StagingOptions());
  uint64_t sequence = 0;
  auto copies = [&](CollectiveKind kind, bool in_place) {
    Job job = AJob();
    job.kind = kind;
    job.in_place = in_place;
    const long in = Fake().Count("d2h_copies");
    const long out = Fake().Count("h2d_copies");
    EXPECT_EQ(world.Check(job, FirstRanks(2), ++sequence), "");
    return std::to_string(Fake().Count("d2h_copies") - in) + " in, " +
           std::to_string(Fake().Count("h2d_copies") - out) + " out";
  };
  EXPECT_EQ(copies(CollectiveKind::kAllreduce, false), "2 in, 2 out");
  EXPECT_EQ(copies(CollectiveKind::kAllreduce, true), "2 in, 2 out");
  EXPECT_EQ(copies(CollectiveKind::kBroadcast, false), "1 in, 2 out");
  EXPECT_EQ(copies(CollectiveKind::kBroadcast, true), "1 in, 1 out");
  EXPECT_EQ(copies(CollectiveKind::kReduce, false), "2 in, 1 out");
  EXPECT_EQ(Fake().Count("blocking_calls"), 0L);
  EXPECT_EQ(Fake().Count("pageable_copies"), 0L);
}

// With the first completion: after that calls with `early` have ended.
TEST(NanInDeviceMemoryIsReportedWithTheFirstCompletion) {
  Fake().Reset();
  Config config = SmallConfig();
  config.check_values = ValueAction::kWarn;
  for (const bool early : {false, true}) {
    GpuWorld world(2, StagingOptions(), config);
    Job job;
    job.elements = {5, 7};
    job.value = NAN;
    world.SubmitAll(job, FirstRanks(2), 1, early);
    const std::vector<BadValues> bad = world.Wait(1, 1, CompletionStage::kLaunched).bad_values;
    ASSERT_EQ(bad.size(), size_t{2});
    EXPECT_EQ(bad[1].buffer, size_t{1});
    EXPECT_EQ(bad[1].nans, int64_t{7});
    EXPECT_TRUE(world.Wait(1, 1).bad_values.empty());
    EXPECT_TRUE(world.Wait(0, 1).status.ok());
  }
}

// docs/gpu.md promises it: that is what hides the copies of a step with several buckets.
TEST(InputsAreCopiedWhileAnEarlierCollectiveIsExchanged) {
  Fake().Reset();
  GpuWorld world(2, StagingOptions());
  for (uint64_t n : {0, 1}) world.Submit(AJob(), FirstRanks(2), 0, n);
  // Rank 1 is late, so neither is through.
  for (int i = 0; i < 3000 && Fake().Count("d2h_copies") < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(Fake().Count("d2h_copies"), 2L);
  for (uint64_t n : {0, 1}) world.Submit(AJob(), FirstRanks(2), 1, n);
  for (uint64_t n : {0, 1}) EXPECT_EQ(world.Finish(AJob(), FirstRanks(2), n), "");
}

TEST(NothingWakesWhenNothingIsStaged) {
  Fake().Reset();
  GpuWorld world(1, StagingOptions());
  EXPECT_EQ(world.Check(AJob(), FirstRanks(1), 0), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const int64_t before = world.backend(0).wakeups();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(world.backend(0).wakeups(), before);
}

// Pinned memory that was handed out and not given back, of 16 collectives that all wait.
TEST(CpuMemoryInUseIsBounded) {
  Fake().Reset();
  StagingOptions options;
  options.most_bytes = 4 * kElements * static_cast<int64_t>(sizeof(float));
  GpuWorld world(2, options);
  const long before = Fake().Count("live_pinned");
  Fake().Set("hold", 1);
  for (uint64_t n = 0; n < 16; ++n) world.SubmitAll(AJob(), FirstRanks(2), n);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(Fake().Count("live_pinned") - before <= 2 * 4);
  Fake().Set("hold", 0);
  for (uint64_t n = 0; n < 16; ++n) EXPECT_EQ(world.Finish(AJob(), FirstRanks(2), n), "");
  // What waits for memory ends with an abort, too.
  Fake().Set("hold", 1);
  for (uint64_t n = 16; n < 32; ++n) world.Submit(AJob(), FirstRanks(2), 0, n);
  for (Rank rank : {0, 1}) world.backend(rank).Abort(Unavailable("rank 7 was lost"));
  Fake().Set("hold", 0);
  for (uint64_t n = 16; n < 32; ++n) {
    EXPECT_EQ(world.Wait(0, n).status.ToString(), Unavailable("rank 7 was lost").ToString());
  }
  world.framework(0).Wait();
}

// A place may be used after later ones: it must not wait for their memory.
TEST(TheLowestPlaceDoesNotWaitForMemory) {
  Fake().Reset();
  GpuWorld world(1, StagingOptions());
  std::map<uint64_t, std::function<void()>> runs;  // by place
  std::mutex mutex;                                // guards runs
  std::promise<void> all;
  Staging::CpuQueue cpu;
  cpu.run = [&](uint64_t place, Collective collective, std::function<void(Completion)> ended) {
    std::lock_guard<std::mutex> lock(mutex);
    runs[place] = [sequence = collective.sequence, ended = std::move(ended)] {
      Completion completion;
      completion.sequence = sequence;
      ended(std::move(completion));
    };
    if (place != 1) return;
    for (auto& [number, end] : runs) end();
  };
  cpu.give_up = [](uint64_t) {};
  cpu.fail = [](Status) {};
  std::atomic<int> ended{0};
  const auto sink = [&](Completion completion) {
    if (completion.stage == CompletionStage::kEnded && ++ended == 2) all.set_value();
  };
  StagingOptions options;
  options.most_bytes = 1;
  Staging staging(cpu, sink, options);
  Collective first = world.Prepare(AJob(), FirstRanks(1), 0, 1);
  staging.Submit(2, world.Prepare(AJob(), FirstRanks(1), 0, 2));
  staging.Submit(1, std::move(first));
  EXPECT_TRUE(all.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
}

}  // namespace
}  // namespace tfring::testing::staging_faults_test
