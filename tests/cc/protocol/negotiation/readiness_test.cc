#include "ops/runtime/protocol/negotiation/readiness.h"

#include <memory>

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

TEST(ReadinessCountsMembersOnce) {
  Readiness readiness;
  const auto add = [&readiness](Rank rank) {
    RankRequest full;
    full.full = std::make_unique<Request>(Allreduce("x"));
    return readiness.Add(0, "x", {0, 1, 2}, rank, std::move(full), 7);
  };
  const PendingTensor* pending = add(2);
  EXPECT_TRUE(add(2) == nullptr);
  EXPECT_TRUE(add(0) == pending);
  EXPECT_TRUE(pending->ready == 2);
  EXPECT_TRUE(pending->ReadyRanks() == (std::vector<Rank>{0, 2}));
  EXPECT_TRUE(add(1)->ready == 3);
  const uint64_t handle = pending->handle;
  readiness.Erase(handle);
  EXPECT_TRUE(readiness.Find(handle) == nullptr);
  EXPECT_EQ(add(1)->ready, size_t{1});
}

}  // namespace
}  // namespace tfring::testing
