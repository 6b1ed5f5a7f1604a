#include "ops/runtime/protocol/engine/limits.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Shutdown of this rank and of others.
namespace tfring::testing::goodbye_test {
namespace {

TEST(ARankThatLeavesCancelsWhatItHasNotBegun) {
  Engines world(3);
  world.Submit(1, 1, Allreduce("x"));
  world.Shutdown(1);
  world.Submit(1, 2, Allreduce("y"));
  EXPECT_EQ(world.Code(1, 2), StatusCode::kCancelled);
  EXPECT_TRUE(!world.Ended(1, 1));  // its plan may be on its way
  EXPECT_TRUE(!world.finished(1));
  world.Deliver();
  EXPECT_EQ(world.Code(1, 1), StatusCode::kCancelled);
  EXPECT_TRUE(world.finished(1));
  EXPECT_EQ(world.Sent(1, 0, FrameType::kGoodbye), 1);
  EXPECT_TRUE(!world.abort(1).has_value());
}

TEST(CallsOfTheSameStepAreCancelledToo) {
  Engines world(2);
  EngineEvents events;
  events.shutdown = true;
  events.submissions.emplace_back(1, Allreduce("x"));
  world.Step(1, std::move(events));
  EXPECT_EQ(world.Code(1, 1), StatusCode::kCancelled);
}

TEST(APlanCountsThoughTheGoodbyeComesWithIt) {
  Engines world(2);
  world.Submit(1, 1, Allreduce("last"));
  world.Deliver();
  world.Submit(0, 1, Allreduce("last"));
  world.Shutdown(0);
  world.DeliverAtOnce();
  ASSERT_EQ(world.runs(1).size(), 1u);
  world.Complete(1, world.runs(1)[0].plan.sequence);
  EXPECT_EQ(world.Code(1, 1), StatusCode::kOk);
}

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

TEST(RankZeroPassesAGoodbyeOn) {
  Engines world(3);
  world.Shutdown(1);
  world.Deliver();
  EXPECT_EQ(world.Sent(0, 2, FrameType::kGoodbye), 1);
  EXPECT_EQ(world.Sent(0, 1, FrameType::kGoodbye), 1);  // the answer
}

TEST(WhatNeedsADepartedRankIsCancelledAndTheRestGoesOn) {
  Engines world(3);
  world.Submit(0, 1, Allreduce("before"));
  world.Deliver();
  world.Shutdown(1);
  world.Deliver();
  EXPECT_EQ(world.Code(0, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(0, 1), "rank 1");
  world.Lose(0, 1);
  world.Lose(2, 1, "process 4711 ended");
  EXPECT_EQ(world.deadline(2), kNever);
  world.Submit(2, 2, Allreduce("after"));
  world.Deliver();
  EXPECT_EQ(world.Code(2, 2), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 2), "rank 1");
  world.Submit(0, 3, Allreduce("pair", {4}, 3));
  world.Submit(2, 3, Allreduce("pair", {4}, 3));
  world.Deliver();
  ASSERT_EQ(world.runs(2).size(), 1u);
  world.Complete(2, world.runs(2)[0].plan.sequence);
  EXPECT_EQ(world.Code(2, 3), StatusCode::kOk);
  EXPECT_TRUE(!world.abort(0).has_value() && !world.abort(2).has_value());
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

TEST(AGoodbyeExplainsAStreamThatBrokeBefore) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Complete(2, world.runs(2)[0].plan.sequence, Unavailable("connection reset"), 1);
  EXPECT_TRUE(!world.Ended(2, 1));
  world.Deliver();  // rank 0 has the fault report before the goodbye
  world.Shutdown(1);
  world.Deliver();
  EXPECT_EQ(world.Code(2, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 1), "rank 1 (host h1) has shut down");
  world.Complete(0, world.runs(0)[0].plan.sequence, Cancelled("aborted"));
  EXPECT_CONTAINS(world.Text(0, 1), "rank 1 (host h1) has shut down");
}

TEST(AGoodbyeExplainsAProcessThatEnded) {
  Engines world(3);
  world.Lose(2, 1, "process 4711 ended");
  EXPECT_EQ(world.deadline(2), world.now + kGoodbyeGrace);
  world.Shutdown(1);
  world.Deliver();
  EXPECT_EQ(world.deadline(2), kNever);
  world.At(world.now + kSecond, 2);
  EXPECT_TRUE(!world.abort(2).has_value());
}

TEST(AShutdownWaitsForPlansThatRun) {
  Engines world(2);
  world.SubmitOnAll(1, "x");
  world.Submit(1, 2, Allreduce("y"));
  world.Shutdown(1);
  world.Deliver();
  EXPECT_EQ(world.Code(1, 2), StatusCode::kCancelled);
  EXPECT_TRUE(!world.Ended(1, 1));
  EXPECT_TRUE(!world.finished(1));
  EXPECT_EQ(world.deadline(1), world.now + kDrainLimit);
  world.now += kSecond;
  world.Complete(1, world.runs(1)[0].plan.sequence);
  EXPECT_EQ(world.Code(1, 1), StatusCode::kOk);
  EXPECT_TRUE(world.finished(1));
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

TEST(ALeaverRunsThePlansThatWereNumberedBefore) {
  for (const bool crossing : {true, false}) {
    Engines world(3);
    for (Rank rank : {0, 1, 2}) world.Submit(rank, 1, Allreduce("x"));
    world.Submit(1, 2, Allreduce("y"));
    if (crossing) {
      world.DeliverAtOnce();  // rank 0 has numbered the plan of x, and it is on its way
      world.Shutdown(1);
    } else {
      world.Shutdown(1);  // rank 0 sees the request and the goodbye in one step
      world.DeliverAtOnce();
    }
    world.Deliver();
    for (Rank rank : {0, 1, 2}) {
      ASSERT_EQ(world.runs(rank).size(), size_t{1});
      EXPECT_TRUE(!world.Ended(rank, 1));
      world.Complete(rank, world.runs(rank)[0].plan.sequence);
      EXPECT_EQ(world.Code(rank, 1), StatusCode::kOk);
      EXPECT_TRUE(!world.abort(rank).has_value());
    }
    EXPECT_EQ(world.Code(1, 2), StatusCode::kCancelled);
    EXPECT_TRUE(world.finished(1));
  }
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

TEST(RankZeroThatLeavesEndsWhatNeedsItAndPlansForTheRest) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Submit(2, 2, Allreduce("y"));
  world.Submit(2, 4, Allreduce("of 1 and 2", {4}, 2));
  world.Submit(0, 3, Allreduce("own"));
  world.Shutdown(0);
  EXPECT_EQ(world.Code(0, 3), StatusCode::kCancelled);
  world.Deliver();
  EXPECT_EQ(world.Code(2, 2), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(2, 2), "rank 0 has shut down");
  for (Rank rank : {0, 1, 2}) {
    world.Complete(rank, world.runs(rank)[0].plan.sequence);
    EXPECT_EQ(world.Code(rank, 1), StatusCode::kOk);
  }
  EXPECT_TRUE(!world.finished(0));
  // A call that waits, and new ones.
  world.now += 10 * kSecond;
  world.Submit(1, 4, Allreduce("of 1 and 2", {4}, 2));
  for (Rank rank : {1, 2}) world.Submit(rank, 5, Allreduce("new", {4}, 2));
  world.Deliver();
  for (Rank rank : {1, 2}) {
    ASSERT_EQ(world.runs(rank).size(), size_t{3});
    world.Complete(rank, world.runs(rank)[1].plan.sequence);
    world.Complete(rank, world.runs(rank)[2].plan.sequence);
    for (CallId id : {4, 5}) EXPECT_EQ(world.Code(rank, id), StatusCode::kOk);
  }
  world.Submit(1, 6, Allreduce("with rank 0"));
  world.Deliver();
  EXPECT_EQ(world.Code(1, 6), StatusCode::kCancelled);
  world.Shutdown(2);
  world.Deliver();
  EXPECT_TRUE(world.finished(0));  // nobody needs it any more
  for (Rank rank : {0, 1, 2}) EXPECT_TRUE(!world.abort(rank).has_value());
  EXPECT_TRUE(!world.doubled);
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

TEST(RankZeroThatLeavesWaitsForNobodyWithoutProcessSets) {
  Engines world(2);
  world.Submit(1, 1, Allreduce("x"));
  world.Shutdown(0);
  EXPECT_TRUE(world.finished(0));
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

TEST(EverybodyLeavingIsNoFailure) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  for (Rank rank : {0, 1, 2}) world.Complete(rank, world.runs(rank)[0].plan.sequence);
  for (Rank rank : {0, 1, 2}) world.Shutdown(rank);
  world.Deliver();
  for (Rank rank : {0, 1, 2}) {
    EXPECT_TRUE(world.finished(rank));
    EXPECT_TRUE(!world.abort(rank).has_value());
    EXPECT_EQ(world.deadline(rank), kNever);
  }
}

TEST(AShutdownAfterALossFinishesOnceTheBackendIsThrough) {
  Engines world(2);
  world.SubmitOnAll(1, "x");
  world.Lose(0, 1);
  world.Shutdown(0);
  EXPECT_TRUE(!world.finished(0));
  world.Complete(0, world.runs(0)[0].plan.sequence, Unavailable("aborted"));
  EXPECT_TRUE(world.finished(0));
  EXPECT_CONTAINS(world.Text(0, 1), "rank 1 (host h1) was lost");
}

}  // namespace
}  // namespace tfring::testing::goodbye_test
