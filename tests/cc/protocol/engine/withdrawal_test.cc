#include <string>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Steps that fail, as one rank's state machine sees them: beside completions, goodbyes and losses.
namespace tfring::testing::withdrawal_test {
namespace {

constexpr char kWhy[] = "the step of rank 1 (host h1) failed: InvalidArgument: NaN in 'loss'";

EngineEvents Fails(uint64_t attempt = 0) {
  EngineEvents events;
  events.withdrawals.push_back({kGlobalProcessSet, attempt, InvalidArgument("NaN in 'loss'")});
  return events;
}

EngineEvents Calls(CallId id, const std::string& name, uint64_t attempt) {
  EngineEvents events;
  events.submissions.emplace_back(id, Allreduce(name), attempt);
  return events;
}

void ExpectAborted(const Engines& world, Rank rank, CallId id) {
  EXPECT_TRUE(world.Code(rank, id) == StatusCode::kAborted);
  EXPECT_CONTAINS(world.Text(rank, id), kWhy);
}

TEST(TheErrorNamesRankHostAndCause) {
  Engines world(3);
  for (Rank rank : {0, 1, 2}) world.Submit(rank, 1, Allreduce("x" + std::to_string(rank)));
  world.Deliver();
  world.Step(1, Fails());
  world.Deliver();
  for (Rank rank : {0, 1, 2}) ExpectAborted(world, rank, 1);
  EXPECT_CONTAINS(world.Text(2, 1), "allreduce of tensor 'x2' was given up");
  for (Rank rank : {0, 1, 2}) world.Step(rank, Calls(2, "x", 1));
  world.Deliver();
  for (Rank rank : {0, 1, 2}) {
    ASSERT_EQ(world.runs(rank).size(), size_t{1});
    world.Complete(rank, world.runs(rank)[0].plan.sequence);
    EXPECT_EQ(world.Text(rank, 2), "Ok");
    EXPECT_EQ(world.in_flight(rank), size_t{0});
  }
  EXPECT_TRUE(!world.doubled);
}

// All in one step: the call was made before the step failed, and never leaves the rank.
TEST(ACallOfTheFailedStepThatWasNotSentYet) {
  Engines world(2);
  EngineEvents events = Fails();
  events.submissions.emplace_back(1, Allreduce("x"), 0);
  events.submissions.emplace_back(2, Allreduce("x"), 1);
  world.Step(1, std::move(events));
  ExpectAborted(world, 1, 1);
  EXPECT_TRUE(!world.Ended(1, 2));
  EXPECT_EQ(world.Sent(1, 0, FrameType::kWithdraw), 1);
  EXPECT_EQ(world.Sent(1, 0, FrameType::kRequests), 1);
  world.Step(1, Fails());  // once is enough
  EXPECT_EQ(world.Sent(1, 0, FrameType::kWithdraw), 1);
}

TEST(ARankThatFailsAndShutsDownSaysWhy) {
  Engines world(2);
  world.Submit(0, 1, Allreduce("x"));
  EngineEvents events = Fails();
  events.shutdown = true;
  world.Step(1, std::move(events));
  world.Deliver();
  ExpectAborted(world, 0, 1);
  world.Step(0, Calls(2, "x", 1));
  world.Deliver();
  EXPECT_TRUE(world.Code(0, 2) == StatusCode::kCancelled);
  EXPECT_TRUE(world.finished(1));
  world.Step(1, Fails(1));  // too late for anybody
}

}  // namespace
}  // namespace tfring::testing::withdrawal_test
