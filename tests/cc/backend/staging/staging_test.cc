// Collectives with tensors in device memory, staged through the host, compared with the same ones
// in host memory. The fake GPU runs late, punishes what is read or freed too early and counts
// copies.
#include "ops/runtime/backend/staging/staging.h"

#include <random>
#include <string>

#include "tests/cc/backend/staging/staged_world.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

// [spec][rank] results of the CPU backend.
using AllResults = std::vector<std::vector<std::vector<std::vector<char>>>>;

AllResults OnTheHost(const std::vector<Spec>& specs, int size) {
  StagedWorld world(size);
  AllResults results(specs.size());
  for (size_t s = 0; s < specs.size(); ++s) {
    std::vector<HostMemory> memory(size);
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

// All specs at once on every rank, so that what is on the host and what is staged mix in the order.
void CompareAll(int size, unsigned seed, int collectives) {
  std::mt19937 random(seed);
  std::vector<Spec> specs;
  for (int i = 0; i < collectives; ++i) specs.push_back(RandomSpec(size, &random));
  Fake().Reset();
  const AllResults expected = OnTheHost(specs, size);
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

TEST(EveryKindHasTheValuesOfTheHost) {
  for (int size = 1; size <= 4; ++size) {
    for (unsigned seed = 0; seed < 6; ++seed) CompareAll(size, seed * 10 + size, 40);
  }
}

}  // namespace
}  // namespace tfring::testing
