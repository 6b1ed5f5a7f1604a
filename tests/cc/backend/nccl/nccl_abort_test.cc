// Abort in every phase, and libraries that are of no use: an answer in bounded time, always.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ops/runtime/backend/nccl/nccl_backend.h"
#include "tests/cc/backend/nccl/hostile.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

std::string Variant(const std::string& name) {
  return TFRING_DOUBLES_DIR "/libnccl_" + name + ".so";
}

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
    for (Rank r = 0; r < 2; ++r) world.backend(r).Abort(LostRank());
    for (int s = 1; s <= phase.submissions; ++s) {
      for (Rank r = 0; r < ranks; ++r) {
        const Completion ended = EndOf(world, r, static_cast<uint64_t>(s), 10);
        EXPECT_CONTAINS(ended.status.ToString(), "rank 1 is lost");
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

TEST(AbortOfWhatIsIdle) {
  BeginHostile(0, 0);
  GpuWorld world(2);
  ASSERT_EQ(world.Check(SmallSum(), FirstRanks(2), 1), "");
  for (Rank r = 0; r < 2; ++r) world.backend(r).Abort(LostRank());
  world.SubmitAll(SmallSum(), FirstRanks(2), 2);
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_CONTAINS(EndOf(world, r, 2, 10).status.ToString(), "rank 1 is lost");
  }
}

struct Broken {
  std::string library;
  const char* says;
};

std::vector<Broken> BrokenLibraries() {
  return {{TFRING_DOUBLES_DIR "/no_such_file.so", "no_such_file.so"},
          {Variant("no_library"), "no_library"},
          {Variant("too_old"), "NCCL 2.17.5"},
          {Variant("version_fails"), "ncclGetVersion returned 3"},
          {Variant("version_hangs"), "loading NCCL"},
          {Variant("lacks_init"), "lacks ncclCommInitRankConfig"},
          {Variant("id_fails"), "ncclGetUniqueId"},
          {Variant("id_hangs"), "ncclGetUniqueId"},
          {FakeDriver(), "is not NCCL"}};
}

GpuWorld::Change WithLibrary(const std::string& library, GpuOperations operations) {
  return [=](NcclOptions* options) {
    options->config.gpu_operations = operations;
    options->load_limit = 500 * kMillisecond;
    options->id_limit = 500 * kMillisecond;
    // The first member makes the id, so it is the one whose library has to be broken.
    if (options->self == 0) options->config.nccl_library = library;
  };
}

// One rank's library is broken: all ranks do without, with the right values.
TEST(WithABrokenLibraryTensorsAreStaged) {
  for (const Broken& broken : BrokenLibraries()) {
    BeginHostile(0, 0);
    GpuWorld world(2, WithLibrary(broken.library, GpuOperations::kAuto));
    for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
      world.SubmitAll(SmallSum(), FirstRanks(2), sequence);
      for (Rank r = 0; r < 2; ++r) (void)EndOf(world, r, sequence);
      EXPECT_EQ(world.Finish(SmallSum(), FirstRanks(2), sequence), "");
    }
    EXPECT_EQ(CountNccl("kernels"), 0);
  }
}

// If NCCL is insisted on, all ranks get the same sentence.
TEST(WithABrokenLibraryInsistingIsOneTypedError) {
  for (const Broken& broken : BrokenLibraries()) {
    BeginHostile(0, 0);
    GpuWorld world(2, WithLibrary(broken.library, GpuOperations::kNccl));
    world.SubmitAll(SmallSum(), FirstRanks(2), 1);
    const Status first = EndOf(world, 0, 1).status;
    const Status second = EndOf(world, 1, 1).status;
    EXPECT_TRUE(first.code() == StatusCode::kUnimplemented);
    EXPECT_EQ(first.ToString(), second.ToString());
    EXPECT_CONTAINS(first.ToString(), broken.says);
    EXPECT_CONTAINS(first.ToString(), "rank 0");
  }
}

TEST(InitThatHangsEndsAtItsLimit) {
  BeginHostile(0, 0);
  SetNccl("hang_init", 1);
  GpuWorld world(2, [](NcclOptions* options) { options->init_limit = 500 * kMillisecond; });
  world.SubmitAll(SmallSum(), FirstRanks(2), 1);
  for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(!EndOf(world, r, 1, 10).status.ok());
}

TEST(TwoRanksOnOneGpu) {
  for (const GpuOperations operations : {GpuOperations::kAuto, GpuOperations::kNccl}) {
    BeginHostile(0, 0);
    GpuWorld world(2, [&](NcclOptions* options) { options->config.gpu_operations = operations; },
                   {1, 1});
    world.SubmitAll(SmallSum(), FirstRanks(2), 1);
    for (Rank r = 0; r < 2; ++r) {
      const Status status = EndOf(world, r, 1).status;
      if (operations == GpuOperations::kAuto) EXPECT_TRUE(status.ok());
      if (operations == GpuOperations::kNccl) {
        EXPECT_CONTAINS(status.ToString(), "tf.config.set_visible_devices");
      }
    }
    if (operations == GpuOperations::kAuto) {
      EXPECT_EQ(world.Finish(SmallSum(), FirstRanks(2), 1), "");
    }
    EXPECT_EQ(CountNccl("inits"), 0);
  }
}

}  // namespace
}  // namespace tfring::testing
