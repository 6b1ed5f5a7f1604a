#include "ops/runtime/protocol/engine/limits.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Lost peers and broken streams.
namespace tfring::testing::loss_test {
namespace {

constexpr char kLostTwo[] = "rank 2 (host h2) was lost: connection closed";

TEST(ALostPeerEndsAllCallsOnAllRanks) {
  Engines world(3);
  world.Submit(0, 1, Allreduce("x"));
  world.Submit(1, 1, Allreduce("x"));
  world.Deliver();
  world.mute.insert(2);
  world.Lose(0, 2);
  EXPECT_EQ(world.Code(0, 1), StatusCode::kUnavailable);
  EXPECT_CONTAINS(world.Text(0, 1), kLostTwo);
  EXPECT_EQ(world.Sent(0, 1, FrameType::kAbort), 1);
  world.Deliver();
  EXPECT_EQ(world.Text(1, 1), world.Text(0, 1));
  EXPECT_TRUE(world.abort(0).has_value() && world.abort(1).has_value());
  world.Submit(1, 2, Allreduce("y"));
  EXPECT_EQ(world.Text(1, 2), world.Text(0, 1));
  EXPECT_EQ(world.in_flight(1), 0u);
  EXPECT_TRUE(!world.doubled);
}

TEST(ABrokenStreamWaitsForTheVerdictAndThenNamesTheSuspect) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.mute.insert(0);
  const uint64_t sequence = world.runs(1)[0].plan.sequence;
  world.Complete(1, sequence, Unavailable("connection reset"), 2);
  EXPECT_TRUE(!world.Ended(1, 1));
  EXPECT_TRUE(world.abort(1).has_value());
  EXPECT_EQ(world.Sent(1, 0, FrameType::kFault), 1);
  EXPECT_EQ(world.deadline(1), world.now + kFaultGrace);
  world.At(world.now + kFaultGrace - 1, 1);
  EXPECT_TRUE(!world.Ended(1, 1));
  world.At(world.now + 1, 1);
  EXPECT_EQ(world.Code(1, 1), StatusCode::kUnavailable);
  EXPECT_CONTAINS(world.Text(1, 1), "rank 2 (host h2) was lost");
  EXPECT_CONTAINS(world.Text(1, 1), "'x'");
  EXPECT_CONTAINS(world.Text(1, 1), "connection reset");
  EXPECT_EQ(world.deadline(1), kNever);
}

TEST(RankZeroWaitsForItsOwnEvidenceAndThenDecides) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Complete(1, world.runs(1)[0].plan.sequence, Unavailable("connection reset"), 2);
  world.Deliver();
  EXPECT_EQ(world.deadline(0), world.now + kSequencerGrace);
  EXPECT_EQ(world.Sent(0, 1, FrameType::kAbort), 0);
  const TimePoint broke = world.now;
  world.At(broke + kSequencerGrace, 0);
  EXPECT_EQ(world.Sent(0, 1, FrameType::kAbort), 1);
  EXPECT_EQ(world.Sent(0, 2, FrameType::kAbort), 1);
  world.Deliver();
  EXPECT_CONTAINS(world.Text(1, 1), "rank 2 (host h2) was lost: rank 1 (host h1) reports");
  EXPECT_TRUE(world.now < broke + kFaultGrace);
}

TEST(RankZerosOwnBrokenStreamIsJudgedSooner) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Complete(0, world.runs(0)[0].plan.sequence, Unavailable("connection reset"), 1);
  EXPECT_EQ(world.deadline(0), world.now + kSequencerGrace);
  world.Lose(0, 1);
  EXPECT_CONTAINS(world.Text(0, 1), "rank 1 (host h1) was lost: connection closed");
}

TEST(AFailureOfOneRanksOwnEndsTheEpochForAll) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Complete(1, world.runs(1)[0].plan.sequence, Internal("no memory for the output"));
  EXPECT_EQ(world.Code(1, 1), StatusCode::kInternal);
  world.Deliver();
  world.Submit(2, 2, Allreduce("y"));
  EXPECT_EQ(world.Text(2, 2), world.Text(1, 1));
  EXPECT_CONTAINS(world.Text(2, 2), "rank 1 (host h1) could not run 'x': no memory");
}

TEST(AProcessThatEndedIsReportedOnceItsGoodbyeIsOverdue) {
  Engines world(3);
  world.Submit(1, 1, Allreduce("x"));
  world.Lose(1, 2, "process 4711 ended");
  EXPECT_EQ(world.Sent(1, 0, FrameType::kFault), 0);
  EXPECT_EQ(world.deadline(1), world.now + kGoodbyeGrace);
  world.At(world.now + kGoodbyeGrace, 1);
  EXPECT_EQ(world.Sent(1, 0, FrameType::kFault), 1);
  EXPECT_TRUE(!world.Ended(1, 1));
  world.Deliver();
  world.At(world.now + kSequencerGrace, 0);
  world.Deliver();
  EXPECT_CONTAINS(world.Text(1, 1), "rank 2 (host h2) was lost");
  EXPECT_CONTAINS(world.Text(1, 1), "process 4711 ended");
}

}  // namespace
}  // namespace tfring::testing::loss_test
