#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// Whether a plan runs between devices or on the CPU: rank 0 decides, by what every member asked.
namespace tfring::testing::paths_test {
namespace {

constexpr DataPath kCpu = DataPath::kCpu;
constexpr DataPath kDevice = DataPath::kDevice;
constexpr DataPath kStaged = DataPath::kStaged;

Request On(DataPath path, Request request) {
  request.path = path;
  return request;
}

// Paths that differ by rank are remembered by rank: steady mixed jobs send ids.
TEST(DifferentPathsAreCached) {
  Cluster cluster(3, Config());
  const std::vector<DataPath> asked = {kDevice, kCpu, kDevice};
  for (int step = 0; step < 4; ++step) {
    for (Rank rank : {0, 1, 2}) cluster.Submit(rank, On(asked[rank], Allreduce("x")));
    cluster.Run();
  }
  for (Rank rank : {0, 1, 2}) EXPECT_EQ(cluster.at(rank).participant().cache_hits(), int64_t{3});
  // The host's rank changes: its request comes in full, the others' ids stand for what they asked.
  cluster.ClearLogs();
  cluster.Submit(0, On(kDevice, Allreduce("x")));
  cluster.Submit(1, On(kDevice, Allreduce("x")));
  cluster.Submit(2, On(kDevice, Allreduce("x")));
  cluster.Run();
  for (Rank rank : {0, 1, 2}) {
    EXPECT_TRUE(cluster.Only(rank).path == kDevice);
    EXPECT_EQ(cluster.at(rank).participant().cache_hits(), int64_t{rank == 1 ? 3 : 4});
  }
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

TEST(PathsAreFusedApart) {
  Config config;
  config.max_plans_in_flight = 1;
  Cluster cluster(2, config);
  cluster.finish_plans = false;
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("busy"));
  cluster.Run();
  cluster.ClearLogs();
  for (Rank rank : {0, 1}) {
    cluster.Submit(rank, On(kDevice, Allreduce("d1")));
    cluster.Submit(rank, On(kCpu, Allreduce("h1")));
    cluster.Submit(rank, On(rank == 0 ? kDevice : kCpu, Allreduce("h2")));
    cluster.Submit(rank, On(kDevice, Allreduce("d2")));
  }
  cluster.Run();
  cluster.finish_plans = true;
  cluster.Run();
  for (Rank rank : {0, 1}) {
    ASSERT_EQ(cluster.log(rank).size(), 2u);
    for (const TakenPlan& plan : cluster.log(rank)) {
      const char first = plan.path == kDevice ? 'd' : 'h';
      EXPECT_EQ(plan.items.size(), 2u);
      for (const PlanItem& item : plan.items) EXPECT_EQ(item.name[0], first);
    }
  }
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

// The backend would read CPU memory as device memory.
TEST(ADevicePlanThatThisRankDidNotAskForIsFatal) {
  for (DataPath asked : {kCpu, kDevice, kStaged}) {
    for (const std::vector<Rank>& absent : {std::vector<Rank>{}, {2}}) {
      ProcessSets sets(3);
      Negotiator negotiator(1, 3, Config(), &sets);
      negotiator.Submit(1, On(asked, Allreduce("x")), 0);
      Frame frame;
      frame.type = FrameType::kPlans;
      Plan& plan = frame.plans.emplace_back(PlanFor(Allreduce("x")));
      plan.sequence = 1;
      plan.path = kDevice;
      plan.absent = absent;
      plan.items = {{"x", 0, {}}};
      negotiator.OnFrame(0, EncodeFrame(frame), 1);
      const Negotiator::Output out = negotiator.Drain();
      const bool right = asked == kDevice && absent.empty();
      EXPECT_EQ(out.runs.size(), right ? 1u : 0u);
      EXPECT_EQ(out.fatal.ok(), right);
      if (!right) EXPECT_CONTAINS(out.fatal.message(), "runs on devices, but rank 1");
    }
  }
}

}  // namespace
}  // namespace tfring::testing::paths_test
