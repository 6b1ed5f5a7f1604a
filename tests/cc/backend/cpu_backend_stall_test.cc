// Collectives that do not move, and streams that carry something else than the plan says.
#include <vector>

#include "ops/runtime/backend/stall_text.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::cpu_backend_stall_test {
namespace {

TEST(ACutPathEndsThePlanAndItsEndsAreNamed) {
  const int size = 4;
  Config config = SmallConfig();
  config.stall_warning = kSecond / 10;
  config.stall_shutdown = kSecond / 2;
  std::vector<std::vector<float>> data(size, std::vector<float>(100000, 1.0f));
  World world(size, config);
  world.streams().Cut(2, 3);
  for (Rank r = 0; r < size; ++r) world.backend(r).Submit(Sum(&data[r], r, size, 17));
  for (Rank r : {2, 3}) {
    const Completion completion = world.Wait(r, 17);
    EXPECT_TRUE(completion.status.code() == StatusCode::kDeadlineExceeded);
    EXPECT_EQ(completion.suspect, kNoRank);
    const std::string& text = completion.status.message();
    EXPECT_CONTAINS(text, "plan 17, allreduce of 'x', has made no progress for 0.");
    EXPECT_CONTAINS(text, "rank 2 (host h2)");
    EXPECT_CONTAINS(text, "rank 3 (host h3)");
    EXPECT_CONTAINS(text, "it was cut");
    EXPECT_CONTAINS(text, "The limit is 0.5 s (TFRING_STALL_SHUTDOWN_TIME_SECONDS)");
    EXPECT_TRUE(text.find("rank 1") == std::string::npos);
  }
  // The others have healthy paths. Nobody tells them here, so they end a moment later by
  // themselves.
  const std::string text = world.Wait(0, 17).status.message();
  EXPECT_CONTAINS(text, "rank 0 (host h0) waits for");
  EXPECT_CONTAINS(text, "from rank 3 (host h3)");
  EXPECT_CONTAINS(text, "No path of this rank looks cut");
}

TEST(ARankThatComesWithinTheLimitIsWaitedFor) {
  Config config = SmallConfig();
  config.stall_warning = kMillisecond;
  config.stall_shutdown = 100 * kSecond;
  std::vector<float> a(5000, 1.0f);
  std::vector<float> b(5000, 2.0f);
  World world(2, config);
  world.backend(0).Submit(Sum(&a, 0, 2, 1));
  while (world.backend(0).wakeups() < 5) {  // it has warned some times
  }
  world.backend(1).Submit(Sum(&b, 1, 2, 1));
  EXPECT_TRUE(world.Wait(0, 1).status.ok() && world.Wait(1, 1).status.ok());
  EXPECT_EQ(a[4999], 3.0f);
}

struct Different {
  const char* what;
  Config second;
  uint64_t sequence;
  size_t elements;
  const char* expected[2];  // what each rank says
};

TEST(StreamsThatDoNotCarryWhatThePlanSaysAreErrors) {
  Config ring = SmallConfig();
  ring.direct_max_bytes = ring.tree_max_bytes = 0;
  // With two ranks a ring sends as many bytes as a direct exchange.
  const Different cases[] = {
      {"another plan",
       SmallConfig(),
       8,
       100,
       {"plan 8 with 400 bytes came where plan 7 with 400 bytes, by direct",
        "plan 7 with 400 bytes came where plan 8 with 400 bytes, by direct"}},
      {"another size",
       SmallConfig(),
       7,
       99,
       {"plan 7 with 396 bytes came where plan 7 with 400",
        "plan 7 with 400 bytes came where plan 7 with 396"}},
      {"so little that it lies in one cache line with the header",
       SmallConfig(),
       7,
       1,
       {"plan 7 with 4 bytes came where plan 7 with 400",
        "plan 7 with 400 bytes came where plan 7 with 4"}},
      {"another algorithm",
       ring,
       7,
       100,
       {"plan 7 with 400 bytes, by another algorithm, came",
        "plan 7 with 400 bytes, by another algorithm, came"}},
  };
  for (const Different& different : cases) {
    for (bool peek : {false, true}) {
      StreamOptions options;
      options.peek = peek;
      std::vector<float> a(100, 1.0f);
      std::vector<float> b(different.elements, 2.0f);
      World world({SmallConfig(), different.second}, options);
      world.backend(0).Submit(Sum(&a, 0, 2, 7));
      world.backend(1).Submit(Sum(&b, 1, 2, different.sequence));
      // A rank that has found the difference sends nothing more, so the other one may wait for it.
      while (world.Count(0, 7) + world.Count(1, different.sequence) == 0) {
      }
      const Rank first = world.Count(0, 7) > 0 ? 0 : 1;
      world.backend(1 - first).Abort(Cancelled("the other rank has failed"));
      const Completion completion = world.Wait(first, first == 0 ? 7 : different.sequence);
      EXPECT_TRUE(completion.status.code() == StatusCode::kInternal);
      EXPECT_CONTAINS(completion.status.message(), different.expected[first]);
      EXPECT_CONTAINS(completion.status.message(),
                      "the data stream from rank " + std::to_string(1 - first) + " is out of step");
      EXPECT_EQ(completion.suspect, kNoRank);
    }
  }
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_stall_test
