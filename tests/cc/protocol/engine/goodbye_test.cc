#include "ops/runtime/protocol/engine/limits.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Shutdown of this rank and of others.
namespace tfring::testing::goodbye_test {
namespace {

TEST(RankZerosGoodbyeNamesWhoLeftBefore) {
  Engines world(3);
  world.Shutdown(1);
  world.Deliver();
  world.Shutdown(0);
  world.Deliver();
  EXPECT_TRUE(world.finished(0));  // the only process set without it has lost rank 1
  world.Submit(2, 1, Allreduce("x"));
  world.Deliver();
  EXPECT_EQ(world.Code(2, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 1), "rank 1 has shut down, after it rank 0, while");
  world.Lose(2, 0);
  world.Submit(2, 2, Allreduce("x"));
  EXPECT_EQ(world.Code(2, 2), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 2), "rank 0 (host h0) has shut down, after rank 1 (host h1) had");
}

TEST(ARunningPlanThatBreaksAfterAGoodbyeIsCancelledEverywhere) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Shutdown(1);
  world.Deliver();
  EXPECT_TRUE(!world.Ended(2, 1));
  world.Complete(2, world.runs(2)[0].plan.sequence, Unavailable("connection reset"), 1);
  EXPECT_EQ(world.Code(2, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 1), "rank 1 (host h1) has shut down while 'x' was running");
  world.Deliver();
  world.Complete(0, world.runs(0)[0].plan.sequence, Cancelled("aborted"));
  EXPECT_EQ(world.Code(0, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(0, 1), "rank 1 (host h1) has shut down");
}

TEST(AShutdownDoesNotWaitForEver) {
  Engines world(2);
  world.SubmitOnAll(1, "x");
  world.Shutdown(1);
  world.Deliver();
  const TimePoint start = world.now;
  world.At(start + kDrainLimit - 1, 1);
  EXPECT_TRUE(!world.abort(1).has_value());
  world.At(start + kDrainLimit, 1);
  EXPECT_TRUE(world.abort(1).has_value());
  EXPECT_TRUE(!world.finished(1));
  world.Complete(1, world.runs(1)[0].plan.sequence, Cancelled("aborted"));
  EXPECT_EQ(world.Code(1, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(1, 1), "'x'");
  EXPECT_TRUE(world.finished(1));
  world.Deliver();
  EXPECT_TRUE(world.abort(0).has_value());  // rank 0 would wait for that data for ever
}

// Data flows, so the plan ends by itself, however long that takes.
TEST(AShutdownWaitsForPlansThatMoveData) {
  Engines world(2);
  world.SubmitOnAll(1, "x");
  world.Shutdown(1);
  world.Deliver();
  for (int i = 1; i <= 50; ++i) {
    EngineEvents events;
    events.progress = 1000 * i;
    world.now = world.deadline(1);
    world.Step(1, std::move(events));
    EXPECT_TRUE(!world.abort(1).has_value());
  }
  world.At(world.deadline(1), 1);  // the first time that it has moved on from nothing
  world.At(world.deadline(1), 1);
  EXPECT_TRUE(world.abort(1).has_value());
}

TEST(ALeaverDoesNotWaitForEverForRankZero) {
  Engines world(2);
  world.Submit(1, 1, Allreduce("x"));
  world.mute.insert(0);
  world.Shutdown(1);
  EXPECT_EQ(world.deadline(1), world.now + kDrainLimit);
  world.At(world.now + kDrainLimit, 1);
  EXPECT_EQ(world.Code(1, 1), StatusCode::kCancelled);
  EXPECT_TRUE(world.finished(1));
}

TEST(RankZeroThatLeavesPlansForOthersForALimitedTime) {
  Engines world(3);
  world.Submit(2, 1, Allreduce("x", {4}, 2));
  world.Shutdown(0);
  world.Deliver();
  const TimePoint start = world.now;
  EXPECT_EQ(world.deadline(0), start + kSequencerStays);
  world.At(start + kSequencerStays - 1, 0);
  EXPECT_TRUE(!world.finished(0));
  world.At(start + kSequencerStays, 0);
  EXPECT_TRUE(world.finished(0));
  world.Lose(2, 0);  // its connection ends
  EXPECT_EQ(world.Code(2, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 1), "rank 0 (host h0) has shut down");
}

// Longer than kDrainLimit, and shorter than rank 0 stays.
TEST(APlanWithoutRankZeroMayRunForLongAfterItHasLeft) {
  Engines world(3);
  for (Rank rank : {1, 2}) world.Submit(rank, 1, Allreduce("x", {4}, 2));
  world.Deliver();
  for (Rank rank : {1, 2}) ASSERT_EQ(world.runs(rank).size(), size_t{1});
  world.Shutdown(0);
  world.Deliver();
  for (const TimePoint end = world.now + 5 * kDrainLimit; world.now < end;) {
    world.now += kDrainLimit / 4;
    for (Rank rank : {0, 1, 2}) world.Step(rank, {});
    world.Deliver();
    ASSERT_TRUE(!world.finished(0));  // else its process ends, and with it the connections
  }
  for (Rank rank : {1, 2}) {
    EXPECT_TRUE(!world.abort(rank).has_value() && !world.Ended(rank, 1));
    world.Complete(rank, world.runs(rank)[0].plan.sequence);
    EXPECT_EQ(world.Code(rank, 1), StatusCode::kOk);
    EXPECT_TRUE(!world.abort(rank).has_value());
  }
}

TEST(WithoutRankZeroPlansHaveALimit) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Shutdown(0);
  world.Deliver();
  world.Lose(2, 0);
  EXPECT_TRUE(!world.abort(2).has_value());
  world.At(world.now + kDrainLimit, 2);
  EXPECT_TRUE(world.abort(2).has_value());
  world.Complete(2, world.runs(2)[0].plan.sequence, Cancelled("aborted"));
  EXPECT_EQ(world.Code(2, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 1), "rank 0 (host h0) has shut down while 'x' was running");
}

TEST(AnOverdueGoodbyeThatRankZeroHasSeenIsNoLoss) {
  Engines world(3);
  world.Lose(2, 1, "process 4711 on this host ended");
  world.mute.insert(2);  // the goodbye reaches rank 2 late
  world.Shutdown(1);
  world.Deliver();
  world.mute.erase(2);
  world.At(world.now + kGoodbyeGrace, 2);
  EXPECT_EQ(world.Sent(2, 0, FrameType::kFault), 1);
  world.Deliver();
  for (Rank rank : {0, 2}) world.Submit(rank, 1, Allreduce("x", {4}, 3));
  world.Deliver();
  for (Rank rank : {0, 2}) EXPECT_EQ(world.runs(rank).size(), size_t{1});
}

}  // namespace
}  // namespace tfring::testing::goodbye_test
