// What happens to collectives on the CPU backend when they are aborted, a stream breaks, members
// do not come, or the collective itself makes no sense.
#include <thread>

#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::cpu_backend_failure_test {
namespace {

TEST(AbortInTheMiddleEndsEverythingOnceWithItsReason) {
  const int size = 3;
  // Before the World: what has not ended uses it until the World is gone.
  std::vector<std::vector<float>> data(size, std::vector<float>(100000, 1.0f));
  World world(size, SmallConfig());
  // Rank 2 never comes: the others get stuck in the middle of the first one.
  for (Rank r = 0; r < 2; ++r) {
    for (uint64_t sequence : {1, 2, 3}) {
      world.backend(r).Submit(Sum(&data[r], r, size, sequence));
    }
  }
  world.streams().WaitForBytes(1000);
  EXPECT_EQ(world.Count(0, 1), 0);
  for (Rank r = 0; r < 2; ++r) {
    world.backend(r).Abort(Unavailable("rank 2 was lost"));
    world.backend(r).Abort(Cancelled("too late to matter"));
    world.backend(r).Submit(Sum(&data[r], r, size, 4));
  }
  for (Rank r = 0; r < 2; ++r) {
    for (uint64_t sequence : {1, 2, 3, 4}) {
      const Completion completion = world.Wait(r, sequence);
      EXPECT_TRUE(completion.status.code() == StatusCode::kUnavailable);
      EXPECT_EQ(completion.status.message(), "rank 2 was lost");
    }
  }
  for (Rank r = 0; r < 2; ++r) {
    for (uint64_t sequence : {1, 2, 3, 4}) EXPECT_EQ(world.Count(r, sequence), 1);
  }
}

TEST(AbortAtAnyMomentCompletesEverythingExactlyOnce) {
  for (int round = 0; round < 100; ++round) {
    const int size = 2;
    const uint64_t count = 20;
    StreamOptions options;
    options.seed = static_cast<uint32_t>(round);
    std::vector<std::vector<float>> data(size, std::vector<float>(500, 1.0f));
    World world(size, SmallConfig(), options);
    std::thread aborter([&] {
      world.streams().WaitForBytes(round * 300);
      world.backend(round % 2).Abort(Cancelled("stop"));
      world.backend(1 - round % 2).Abort(Cancelled("stop"));
    });
    for (uint64_t sequence = 0; sequence < count; ++sequence) {
      for (Rank r = 0; r < size; ++r) world.backend(r).Submit(Sum(&data[r], r, size, sequence));
    }
    for (Rank r = 0; r < size; ++r) {
      bool ended = false;
      for (uint64_t sequence = 0; sequence < count; ++sequence) {
        const Completion completion = world.Wait(r, sequence);
        // Once one has been cancelled, all that follow have.
        EXPECT_TRUE(completion.status.ok() ? !ended : completion.status.message() == "stop");
        ended = !completion.status.ok();
        EXPECT_EQ(world.Count(r, sequence), 1);
      }
    }
    aborter.join();
  }
}

TEST(InArenasAbortAndAClosedRankEndEverythingOnce) {
  for (size_t elements : {size_t{10}, size_t{2000}, size_t{1000000}}) {
    const int size = 3;
    std::vector<std::vector<float>> data(size, std::vector<float>(elements, 1.0f));
    std::vector<std::unique_ptr<DataTransport>> transports = SharedHost(size);
    World world(std::vector<Config>(size), std::move(transports));
    // Rank 2 never comes.
    for (Rank r : {0, 1}) {
      for (uint64_t sequence : {1, 2}) {
        world.backend(r).Submit(Sum(&data[r], r, size, sequence));
      }
    }
    world.backend(0).Abort(Unavailable("rank 2 was lost"));
    for (uint64_t sequence : {1, 2}) {
      EXPECT_EQ(world.Wait(0, sequence).status.message(), "rank 2 was lost");
    }
    EXPECT_EQ(world.Count(1, 1), 0);
    world.Destroy(2);
    for (uint64_t sequence : {1, 2}) {
      const Completion completion = world.Wait(1, sequence);
      EXPECT_TRUE(completion.status.code() == StatusCode::kUnavailable);
      EXPECT_CONTAINS(completion.status.message(), "rank 2 closed its shared memory");
      EXPECT_EQ(completion.suspect, 2);
      EXPECT_EQ(world.Count(1, sequence), 1);
    }
  }
}

TEST(ABrokenStreamNamesTheSuspectAndEndsAllThatFollows) {
  const int size = 4;
  std::vector<std::vector<float>> data(size, std::vector<float>(100000, 1.0f));
  World world(size, SmallConfig());
  for (Rank r = 0; r < size; ++r) {
    if (r == 2) continue;
    world.backend(r).Submit(Sum(&data[r], r, size, 1));
    world.backend(r).Submit(Sum(&data[r], r, size, 2));
  }
  world.streams().WaitForBytes(1000);
  world.streams().Break(2);
  // Rank 0 has no stream to rank 2 in a ring of four: only the control plane can tell it.
  for (Rank r : {1, 3}) {
    for (uint64_t sequence : {1, 2}) {
      const Completion completion = world.Wait(r, sequence);
      EXPECT_TRUE(completion.status.code() == StatusCode::kUnavailable);
      EXPECT_CONTAINS(completion.status.message(), "rank 2");
      EXPECT_EQ(completion.suspect, 2);
    }
  }
  EXPECT_EQ(world.Count(0, 1), 0);
  // The reason of an abort replaces that of the broken stream.
  world.backend(1).Abort(Unavailable("rank 2 (host b) was lost"));
  world.backend(1).Submit(Sum(&data[1], 1, size, 3));
  EXPECT_EQ(world.Wait(1, 3).status.message(), "rank 2 (host b) was lost");
}

TEST(ARankThatIsNotConnectedIsAnError) {
  StreamOptions options;
  options.connected = [](Rank, Rank peer) { return peer != 7; };
  std::vector<float> data(10, 1.0f);
  World world(1, SmallConfig(), options);
  Collective c = Sum(&data, 0, 1, 1);
  c.members = {0, 7};
  world.backend(0).Submit(std::move(c));
  const Completion completion = world.Wait(0, 1);
  EXPECT_TRUE(completion.status.code() == StatusCode::kInternal);
  EXPECT_CONTAINS(completion.status.message(), "not connected to rank 7");
}

TEST(ClosingWithoutAnAbortEndsWhatIsLeft) {
  std::vector<float> data(10, 1.0f);
  InProcessDataHub hub(2, StreamOptions());
  int total = 0;
  {
    CpuBackend backend(0, SmallConfig(), hub.Endpoint(0), [&](Completion) { ++total; });
    for (uint64_t sequence = 0; sequence < 50; ++sequence) {
      backend.Submit(Sum(&data, 0, 2, sequence));
    }
  }
  EXPECT_EQ(total, 50);
}

TEST(AnIdleBackendDoesNotWake) {
  std::vector<std::vector<float>> data(2, std::vector<float>(10, 1.0f));
  World world(2, SmallConfig());
  for (Rank r = 0; r < 2; ++r) world.backend(r).Submit(Sum(&data[r], r, 2, 1));
  for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(world.Wait(r, 1).status.ok());
  const int64_t before = world.backend(0).wakeups() + world.backend(1).wakeups();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(world.backend(0).wakeups() + world.backend(1).wakeups() - before <= 2);
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_failure_test
