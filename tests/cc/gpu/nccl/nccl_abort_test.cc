// Abort in every phase, and libraries that are of no use: an answer in bounded time, always.
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "ops/gpu/nccl/nccl_backend.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/hostile.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_abort_test {
namespace {

std::string Variant(const std::string& name) { return TFRING_FAKES_DIR "/libnccl_" + name + ".so"; }

struct Phase {
  const char* name;
  const char* setting;  // of the fake NCCL, before the submission; null: none
  int submissions = 1;
  bool hold = false;              // streams do not start
  bool only_rank0 = false;        // the others never submit
  const char* library = nullptr;  // a broken library
};

void RunPhase(const Phase& phase) {
  BeginHostile(0, 0);
  const auto begin = std::chrono::steady_clock::now();
  {
    GpuWorld world(2, [&](NcclOptions* options) {
      options->abort_limit = kSecond;
      options->destroy_limit = 100 * kMillisecond;
      if (phase.library != nullptr) options->config.nccl_library = Variant(phase.library);
    });
    if (phase.setting != nullptr) SetNccl(phase.setting, 1);
    if (phase.hold) Fake().Set("hold", 1);
    const int ranks = phase.only_rank0 ? 1 : 2;
    for (int s = 1; s <= phase.submissions; ++s) {
      for (Rank r = 0; r < ranks; ++r) {
        world.Submit(SmallSum(), FirstRanks(2), r, static_cast<uint64_t>(s));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    world.AbortAll(LostRank());
    for (int s = 1; s <= phase.submissions; ++s) {
      for (Rank r = 0; r < ranks; ++r) {
        const Completion ended = EndOf(world, r, static_cast<uint64_t>(s), 10);
        if (!IsFromAbort(r, ended.status, LostRank())) {
          EXPECT_EQ(ended.status.ToString(), LostRank().ToString());
        }
      }
    }
    // Later ones end at once with the same.
    world.Submit(SmallSum(), FirstRanks(2), 0, 1000);
    EXPECT_CONTAINS(EndOf(world, 0, 1000, 10).status.ToString(), "rank 1 is lost");
    EXPECT_EQ(world.Count(0, 1, CompletionStage::kEnded), 1);
    Fake().Set("hold", 0);
  }
  SetNccl("hang_abort", 0);
  EXPECT_TRUE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  if (Failures() > 0) std::cerr << "in phase " << phase.name << "\n";
}

TEST(AbortInEveryPhase) {
  RunPhase({"the library loads", nullptr, 1, false, false, "version_hangs"});
  RunPhase({"the library makes an id", nullptr, 1, false, false, "id_hangs"});
  RunPhase({"the members meet", nullptr, 3, false, true});
  RunPhase({"init", "hang_init"});
  RunPhase({"the calls are enqueued", "hang_group", 2});
  RunPhase({"the framework's stream has not come so far", nullptr, 2, true});
  RunPhase({"a kernel runs", "hang_kernel", 3});
  RunPhase({"more is in flight than may be", "hang_kernel", 40});
  RunPhase({"a kernel that does not even end with an abort", "hang_abort", 1, true});
}

// The collective of three ranks hangs, and on the stream behind it is one of two of them, whose
// communicator is older. An abort waits for the kernels of its communicator.
TEST(AnAbortDoesNotWaitForThatOfAnotherCommunicator) {
  BeginHostile(0, 0);
  GpuWorld world(3, [](NcclOptions* options) { options->abort_limit = 60 * kSecond; });
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(2), 1), "");
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(3), 2), "");
  for (int self = 0; self < 2; ++self) {
    world.Submit(SmallSum(), FirstRanks(3), self, 3);
    world.Submit(SmallSum(), FirstRanks(2), self, 4);
  }
  for (Rank r = 0; r < 2; ++r) (void)world.Wait(r, 4, CompletionStage::kLaunched);
  world.AbortAll(LostRank());
  for (Rank r = 0; r < 2; ++r) {
    for (uint64_t sequence : {3, 4}) {
      EXPECT_TRUE(IsFromAbort(r, EndOf(world, r, sequence, 20).status, LostRank()));
    }
  }
}

TEST(AbortOfWhatIsIdle) {
  BeginHostile(0, 0);
  GpuWorld world(2);
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(2), 1), "");
  world.AbortAll(LostRank());
  world.SubmitAll(SmallSum(), FirstRanks(2), 2);
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_CONTAINS(EndOf(world, r, 2, 10).status.ToString(), "rank 1 is lost");
  }
}

}  // namespace
}  // namespace tfring::testing::nccl_abort_test
