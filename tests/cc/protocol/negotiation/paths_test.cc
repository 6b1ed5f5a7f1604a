#include <string>
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
