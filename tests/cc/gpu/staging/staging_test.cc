// Collectives with tensors in device memory, staged through CPU memory, compared with the same ones
// in CPU memory. The fake GPU runs late, punishes what is read or freed too early and counts
// copies.
#include "ops/gpu/staging/staging.h"

#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>

#include "tests/cc/gpu/staging/staged_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::staging_test {
namespace {

// [spec][rank] results of the CPU backend.
using AllResults = std::vector<std::vector<std::vector<std::vector<char>>>>;

AllResults OnTheCpu(const std::vector<Spec>& specs, int size) {
  StagedWorld world(size);
  AllResults results(specs.size());
  for (size_t s = 0; s < specs.size(); ++s) {
    std::vector<CpuMemory> memory(size);
    std::vector<Part> parts;
    for (Rank rank = 0; rank < size; ++rank) {
      parts.push_back(MakePart(specs[s], rank, s));
      memory[rank].Attach(&parts.back(), false);
      world.backend(rank).Submit(parts.back().collective);
    }
    for (Rank rank = 0; rank < size; ++rank) {
      EXPECT_EQ(Text(specs[s]) + world.Wait(rank, s).status.ToString(),
                Text(specs[s]) + OkStatus().ToString());
      results[s].push_back(memory[rank].Results(parts[rank].collective));
    }
  }
  return results;
}

// Which tensors of a rank are in device memory, and whether their calls are `early`.
struct Placement {
  std::vector<bool> on_device;
  bool early = false;
};

Placement RandomPlacement(size_t tensors, std::mt19937* random) {
  Placement placement;
  const unsigned kind = (*random)() % 4;  // all, none, mixed
  for (size_t t = 0; t < tensors; ++t) {
    placement.on_device.push_back(kind <= 1 || (kind == 2 && (*random)() % 2 == 0));
  }
  placement.early = (*random)() % 2 == 0;
  return placement;
}

// All specs at once on every rank, so that what is on the CPU and what is staged mix in the order.
void CompareAll(int size, unsigned seed, int collectives) {
  std::mt19937 random(seed);
  std::vector<Spec> specs;
  for (int i = 0; i < collectives; ++i) specs.push_back(RandomSpec(size, &random));
  Fake().Reset();
  const AllResults expected = OnTheCpu(specs, size);
  Fake().Set("seed", static_cast<long>(seed) + 1);
  Fake().Set("delay_us", 100);
  StagedWorld world(size);
  std::vector<std::vector<std::unique_ptr<DevicePart>>> parts(specs.size());
  world.on_completion = [&](Rank rank, const Completion& completion) {
    // An early call may be used on the framework's stream from here on.
    if (completion.stage == CompletionStage::kLaunched &&
        parts[completion.sequence][rank]->early()) {
      parts[completion.sequence][rank]->ReadResults();
    }
  };
  for (size_t s = 0; s < specs.size(); ++s) {
    for (Rank rank = 0; rank < size; ++rank) {
      const Placement placement = RandomPlacement(specs[s].elements.size(), &random);
      parts[s].push_back(std::make_unique<DevicePart>(&world, rank, MakePart(specs[s], rank, s),
                                                      specs[s].in_place, placement.on_device,
                                                      placement.early));
    }
  }
  for (size_t s = 0; s < specs.size(); ++s) {
    for (auto& part : parts[s]) part->Submit();
  }
  for (size_t s = 0; s < specs.size(); ++s) {
    for (Rank rank = 0; rank < size; ++rank) {
      const std::string what = "seed " + std::to_string(seed) + ", number " + std::to_string(s) +
                               ", " + Text(specs[s]) + ", rank " + std::to_string(rank) + ": ";
      EXPECT_EQ(what + world.Wait(rank, s).status.ToString(), what + OkStatus().ToString());
      if (parts[s][rank]->Results() != expected[s][rank]) {
        EXPECT_EQ(what + "the same result", what + "another result");
      }
      parts[s][rank]->Free();
      EXPECT_EQ(world.Ends(rank, s), 1);
    }
  }
  EXPECT_EQ(Fake().Count("blocking_calls"), 0L);
  EXPECT_EQ(Fake().Count("pageable_copies"), 0L);
}

TEST(EveryKindHasTheValuesOfTheCpu) {
  for (int size = 1; size <= 4; ++size) {
    for (unsigned seed = 0; seed < 6; ++seed) CompareAll(size, seed * 10 + size, 40);
  }
}

// A fault at any moment, on late streams: everything ends once, and what ends well is right. When a
// rank fails the others are told that it was lost, as the engine does.
void RunWithFault(unsigned seed) {
  constexpr int kSize = 2;
  const std::string what = "seed " + std::to_string(seed);
  std::mt19937 random(seed);
  std::vector<Spec> specs;
  for (int i = 0; i < 12; ++i) specs.push_back(RandomSpec(kSize, &random));
  Fake().Reset();
  const AllResults expected = OnTheCpu(specs, kSize);
  StagedWorld world(kSize);
  world.on_completion = [&](Rank rank, const Completion& completion) {
    if (completion.status.ok()) return;
    world.backend(1 - rank).Abort(Unavailable("rank " + std::to_string(rank) + " was lost"));
  };
  std::vector<std::vector<std::unique_ptr<DevicePart>>> parts(specs.size());
  for (size_t s = 0; s < specs.size(); ++s) {
    for (Rank rank = 0; rank < kSize; ++rank) {
      const Placement placement = RandomPlacement(specs[s].elements.size(), &random);
      parts[s].push_back(std::make_unique<DevicePart>(&world, rank, MakePart(specs[s], rank, s),
                                                      specs[s].in_place, placement.on_device,
                                                      placement.early));
    }
  }
  for (Rank rank = 0; rank < kSize; ++rank) world.gpu(rank).Wait();
  Fake().Set("seed", static_cast<long>(seed) + 1);
  Fake().Set("delay_us", 100);
  Fake().Set("fault_device", static_cast<long>(random() % kSize));
  const char* const faults[] = {"sticky", "sticky", "lost_host_function", "slow_event"};
  Fake().Set("slow_event_us", 20 * 1000);
  Fake().Inject(faults[random() % 4], 1 + static_cast<long>(random() % 40));
  for (size_t s = 0; s < specs.size(); ++s) {
    for (auto& part : parts[s]) part->Submit();
  }
  for (size_t s = 0; s < specs.size(); ++s) {
    for (Rank rank = 0; rank < kSize; ++rank) {
      const Completion end = world.Wait(rank, s);
      EXPECT_EQ(what + std::to_string(world.Ends(rank, s)), what + "1");
      if (!end.status.ok()) continue;
      EXPECT_EQ(what + std::to_string(parts[s][rank]->ResultsInMemory() == expected[s][rank]),
                what + "1");
    }
  }
  Fake().Reset();
}

// With the first completion: after that calls with `early` have ended.
TEST(NanInDeviceMemoryIsReportedWithTheFirstCompletion) {
  Spec spec;
  spec.size = 2;
  for (int64_t elements : {5, 7}) {
    spec.elements.push_back({2, std::vector<int64_t>(2, elements)});
  }
  Config config = SmallConfig();
  config.check_values = ValueAction::kWarn;
  Fake().Reset();
  for (const bool early : {false, true}) {
    StagedWorld world(spec.size, config);
    std::mutex mutex;
    std::vector<Completion> of_rank_1;
    world.on_completion = [&](Rank rank, const Completion& completion) {
      std::lock_guard<std::mutex> lock(mutex);
      if (rank == 1) of_rank_1.push_back(completion);
    };
    std::vector<std::unique_ptr<DevicePart>> parts;
    for (Rank rank = 0; rank < spec.size; ++rank) {
      Part part = MakePart(spec, rank, 1);
      const float bad = std::numeric_limits<float>::quiet_NaN();
      if (rank == 1) std::memcpy(part.inputs[1].data() + 4 * sizeof(bad), &bad, sizeof(bad));
      parts.push_back(std::make_unique<DevicePart>(&world, rank, std::move(part), false,
                                                   std::vector<bool>{true, true}, early));
      parts.back()->Submit();
    }
    for (Rank rank = 0; rank < spec.size; ++rank) EXPECT_TRUE(world.Wait(rank, 1).status.ok());
    ASSERT_EQ(of_rank_1.size(), size_t{2});
    EXPECT_TRUE(of_rank_1[0].stage == CompletionStage::kLaunched);
    ASSERT_EQ(of_rank_1[0].bad_values.size(), size_t{1});
    EXPECT_EQ(of_rank_1[0].bad_values[0].buffer, size_t{1});
    EXPECT_EQ(of_rank_1[0].bad_values[0].nans, int64_t{1});
    EXPECT_TRUE(of_rank_1[1].bad_values.empty());
  }
}

TEST(WithFaultsEverythingEndsOnceAndIsRightOrAnError) {
  for (unsigned seed = 0; seed < 60; ++seed) RunWithFault(seed);
}

}  // namespace
}  // namespace tfring::testing::staging_test
