// What happens to staged collectives when the GPU fails, when memory runs out and when everything
// is aborted: each ends once, with a typed error, and not before the GPU is through with its
// memory.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/gpu/staging/staging.h"
#include "tests/cc/gpu/staging/staged_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::staging_faults_test {
namespace {

constexpr int64_t kElements = 256;

Spec Allreduce(int size) {
  Spec spec;
  spec.size = size;
  spec.elements = {{static_cast<size_t>(size), std::vector<int64_t>(size, kElements)}};
  return spec;
}

std::unique_ptr<DevicePart> OnGpu(StagedWorld* world, Rank rank, const Spec& spec,
                                  uint64_t sequence, bool early = false) {
  return std::make_unique<DevicePart>(world, rank, MakePart(spec, rank, sequence), false,
                                      std::vector<bool>(spec.elements.size(), true), early);
}

void ExpectInternal(const Completion& completion, const std::string& part) {
  EXPECT_EQ(static_cast<int>(completion.status.code()), static_cast<int>(StatusCode::kInternal));
  EXPECT_CONTAINS(completion.status.message(), part);
}

TEST(AStickyErrorEndsEverythingWithATypedError) {
  for (long nth : {1, 2, 3, 4, 5, 6}) {
    Fake().Reset();
    Fake().Set("seed", nth);
    StagedWorld world(1);
    std::vector<std::unique_ptr<DevicePart>> parts;
    for (uint64_t n = 0; n < 3; ++n) parts.push_back(OnGpu(&world, 0, Allreduce(1), n, n == 1));
    world.gpu(0).Wait();
    Fake().Inject("sticky", nth);  // of copies in and out, and of host functions
    for (auto& part : parts) part->Submit();
    for (uint64_t s = 0; s < 3; ++s) {
      const Completion end = world.Wait(0, s);
      if (!end.status.ok() || s == 2) ExpectInternal(end, "CUDA_ERROR_ILLEGAL_ADDRESS");
      EXPECT_EQ(world.Ends(0, s), 1);
    }
    Fake().Reset();
    parts.clear();
  }
}

TEST(AFailureOnOneRankDoesNotLeaveTheOthersInTheMiddle) {
  Fake().Reset();
  StagedWorld world(2);
  Fake().Set("fault_device", 1);
  auto first = OnGpu(&world, 0, Allreduce(2), 0);
  auto second = OnGpu(&world, 1, Allreduce(2), 0);
  world.gpu(1).Wait();
  Fake().Inject("sticky", 1);  // the copy to the CPU
  second->Submit();
  ExpectInternal(world.Wait(1, 0), "CUDA_ERROR_ILLEGAL_ADDRESS");
  // What follows in the order fails, too: it would be taken for the one that failed.
  std::vector<float> data(4, 1.0f);
  world.backend(1).Submit(Sum(&data, 1, 2, 1));
  ExpectInternal(world.Wait(1, 1), "CUDA_ERROR_ILLEGAL_ADDRESS");
  first->Submit();
  world.backend(0).Abort(Unavailable("rank 1 was lost"));
  EXPECT_EQ(world.Wait(0, 0).status.ToString(), Unavailable("rank 1 was lost").ToString());
  Fake().Reset();
}

TEST(OutOfPinnedMemoryIsATypedError) {
  Fake().Reset();
  StagedWorld world(1);
  auto part = OnGpu(&world, 0, Allreduce(1), 0);
  world.gpu(0).Wait();
  Fake().Inject("out_of_memory", 1);
  part->Submit();
  const Completion end = world.Wait(0, 0);
  EXPECT_EQ(static_cast<int>(end.status.code()), static_cast<int>(StatusCode::kResourceExhausted));
  EXPECT_CONTAINS(end.status.message(), "rank 0: allreduce of 'x': allocating");
}

// Nothing may be reported as ended while the device copies.
TEST(AnAbortWaitsForCopiesThatAreUnderWay) {
  for (bool after_the_collective : {false, true}) {
    Fake().Reset();
    StagedWorld world(1);
    auto part = OnGpu(&world, 0, Allreduce(1), 0);
    std::vector<float> data(4, 1.0f);
    world.gpu(0).Wait();
    Fake().Set("delay_us", after_the_collective ? 100 * 1000 : 300 * 1000);
    part->Submit();
    world.backend(0).Submit(Sum(&data, 0, 1, 1));
    if (after_the_collective) {
      while (!world.Launched(0, 0)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_EQ(world.Ends(0, 0), 0);
    world.backend(0).Abort(Aborted("the step failed"));
    if (!after_the_collective) {
      // It does not hold up what came after it.
      EXPECT_EQ(world.Wait(0, 1).status.ToString(), Aborted("the step failed").ToString());
      EXPECT_EQ(world.Ends(0, 0), 0);
    }
    const Completion end = world.Wait(0, 0);
    const Status expected = after_the_collective ? OkStatus() : Aborted("the step failed");
    EXPECT_EQ(end.status.ToString(), expected.ToString());
    part->Free();  // the fake ends the process if the memory is still used
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(ACopyThatHangsIsGivenUpAndItsMemoryKeptUntilItHasEnded) {
  Fake().Reset();
  auto keeps = std::make_shared<int>(0);
  {
    StagedWorld world(1);
    Spec spec = Allreduce(1);
    auto part = OnGpu(&world, 0, spec, 0);
    world.gpu(0).Wait();
    Fake().Set("hang_us", 7 * 1000 * 1000);
    Fake().Inject("hang", 1);
    Collective collective = part->collective();
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
}

TEST(WhatComesAfterAnAbortEndsWithIt) {
  Fake().Reset();
  StagedWorld world(1);
  world.backend(0).Abort(Aborted("over"));
  auto part = OnGpu(&world, 0, Allreduce(1), 0);
  part->Submit();
  EXPECT_EQ(world.Wait(0, 0).status.ToString(), Aborted("over").ToString());
  world.gpu(0).Wait();
  EXPECT_EQ(Fake().Count("d2h_copies"), 0L);
}

TEST(OnlyWhatIsNeededIsCopied) {
  Fake().Reset();
  StagedWorld world(2);
  uint64_t sequence = 0;
  auto copies = [&](CollectiveKind kind, bool in_place) {
    Spec spec = Allreduce(2);
    spec.kind = kind;
    const long in = Fake().Count("d2h_copies");
    const long out = Fake().Count("h2d_copies");
    std::vector<std::unique_ptr<DevicePart>> parts;
    for (Rank rank = 0; rank < 2; ++rank) {
      parts.push_back(std::make_unique<DevicePart>(&world, rank, MakePart(spec, rank, sequence),
                                                   in_place, std::vector<bool>{true}, false));
      parts.back()->Submit();
    }
    for (Rank rank = 0; rank < 2; ++rank) EXPECT_TRUE(world.Wait(rank, sequence).status.ok());
    ++sequence;
    return std::to_string(Fake().Count("d2h_copies") - in) + " in, " +
           std::to_string(Fake().Count("h2d_copies") - out) + " out";
  };
  EXPECT_EQ(copies(CollectiveKind::kAllreduce, false), "2 in, 2 out");
  EXPECT_EQ(copies(CollectiveKind::kAllreduce, true), "2 in, 2 out");
  EXPECT_EQ(copies(CollectiveKind::kBroadcast, false), "1 in, 2 out");
  EXPECT_EQ(copies(CollectiveKind::kBroadcast, true), "1 in, 1 out");
  EXPECT_EQ(copies(CollectiveKind::kReduce, false), "2 in, 1 out");
}

// docs/gpu.md promises it: that is what hides the copies of a step with several buckets.
TEST(InputsAreCopiedWhileAnEarlierCollectiveIsExchanged) {
  Fake().Reset();
  StagedWorld world(2);
  std::vector<std::unique_ptr<DevicePart>> parts;
  for (uint64_t n : {0, 1}) {
    for (Rank rank : {0, 1}) parts.push_back(OnGpu(&world, rank, Allreduce(2), n));
  }
  parts[0]->Submit();
  parts[2]->Submit();
  // Rank 1 is late, so neither is through.
  for (int i = 0; i < 3000 && Fake().Count("d2h_copies") < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(Fake().Count("d2h_copies"), 2L);
  parts[1]->Submit();
  parts[3]->Submit();
  for (uint64_t n : {0, 1}) {
    for (Rank rank : {0, 1}) EXPECT_TRUE(world.Wait(rank, n).status.ok());
  }
}

TEST(NothingWakesWhenNothingIsStaged) {
  Fake().Reset();
  StagedWorld world(1);
  auto part = OnGpu(&world, 0, Allreduce(1), 0);
  part->Submit();
  EXPECT_TRUE(world.Wait(0, 0).status.ok());
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
  StagedWorld world(2, SmallConfig(), options);
  std::vector<std::unique_ptr<DevicePart>> parts;
  for (uint64_t n = 0; n < 16; ++n) {
    for (Rank rank : {0, 1}) parts.push_back(OnGpu(&world, rank, Allreduce(2), n));
  }
  for (Rank rank : {0, 1}) world.gpu(rank).Wait();
  const long before = Fake().Count("live_pinned");
  Fake().Set("hold", 1);
  for (auto& part : parts) part->Submit();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(Fake().Count("live_pinned") - before <= 2 * 4);
  Fake().Set("hold", 0);
  for (uint64_t n = 0; n < 16; ++n) {
    for (Rank rank : {0, 1}) EXPECT_TRUE(world.Wait(rank, n).status.ok());
  }
  // What waits for memory ends with an abort, too.
  Fake().Set("hold", 1);
  std::vector<std::unique_ptr<DevicePart>> late;
  for (uint64_t n = 16; n < 32; ++n) late.push_back(OnGpu(&world, 0, Allreduce(2), n));
  for (auto& part : late) part->Submit();
  for (Rank rank : {0, 1}) world.backend(rank).Abort(Unavailable("rank 7 was lost"));
  Fake().Set("hold", 0);
  for (uint64_t n = 16; n < 32; ++n) {
    EXPECT_EQ(world.Wait(0, n).status.ToString(), Unavailable("rank 7 was lost").ToString());
  }
  world.gpu(0).Wait();
}

// A place may be used after later ones: it must not wait for their memory.
TEST(TheLowestPlaceDoesNotWaitForMemory) {
  Fake().Reset();
  StagedWorld world(1);
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
  auto first = OnGpu(&world, 0, Allreduce(1), 1);
  auto second = OnGpu(&world, 0, Allreduce(1), 2);
  staging.Submit(2, second->collective());
  staging.Submit(1, first->collective());
  EXPECT_TRUE(all.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
}

}  // namespace
}  // namespace tfring::testing::staging_faults_test
