#include <string>

#include "ops/runtime/protocol/engine/limits.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// What ranks learn of others that leave: when, and the exceptions that ended them.
namespace tfring::testing::goodbyes_passed_on_test {
namespace {

// The first at once, those that follow soon in one frame, to those only that have not left.
TEST(GoodbyesThatComeTogetherArePassedOnTogether) {
  Engines world(6);
  for (Rank rank : {4, 1, 3}) {
    world.Shutdown(rank);
    world.Deliver();
    EXPECT_EQ(world.Sent(0, rank, FrameType::kGoodbye), rank == 4 ? 1 : 2);
    EXPECT_TRUE(world.finished(rank));  // it has its answer
  }
  EXPECT_EQ(world.Goodbyes(0, 5), "4 ");
  EXPECT_EQ(world.deadline(0), world.now + kGoodbyePause);
  world.At(world.now + kGoodbyePause, 0);
  for (Rank rank : {2, 5}) EXPECT_EQ(world.Goodbyes(0, rank), "4 1 3 ");
  EXPECT_EQ(world.Goodbyes(0, 3), "4 3 ");
  EXPECT_EQ(world.deadline(0), kNever);
  world.Shutdown(2);
  world.Deliver();
  world.Shutdown(5);  // the last: nobody is left to be told of the two
  world.Deliver();
  EXPECT_EQ(world.Goodbyes(0, 5), "4 1 3 5 ");
  EXPECT_EQ(world.deadline(0), kNever);
}

TEST(AnExceptionThatEndsARankIsNamedByTheOthers) {
  Engines world(4);
  const std::string ended = "rank 1 (host h1) ended with an exception: ValueError: bad";
  world.Submit(0, 1, Allreduce("waits"));
  world.Deliver();
  world.Shutdown(1, "ValueError: bad");
  world.Deliver();
  world.Submit(2, 1, Allreduce("later"));
  world.Deliver();
  for (Rank rank : {0, 2}) {
    EXPECT_EQ(world.Code(rank, 1), StatusCode::kCancelled);
    EXPECT_CONTAINS(world.Text(rank, 1), ended + ". Tensor '");
    EXPECT_CONTAINS(world.Text(rank, 1), "' was waiting for rank 1 (");
    EXPECT_CONTAINS(world.Text(rank, 1), "See the log of rank 1");
    EXPECT_TRUE(world.Text(rank, 1).find("same amount of data") == std::string::npos);
  }
  // Ranks that end because of that error are not the ones to blame.
  world.Shutdown(0, "CancelledError: " + ended);
  world.Deliver();
  world.Submit(3, 2, Allreduce("last"));
  world.Deliver();
  EXPECT_CONTAINS(world.Text(3, 2),
                  "Cancelled: " + ended + ". Tensor 'last' was waiting for ranks 0, 1");
  world.Lose(3, 0);
  world.Submit(3, 3, Allreduce("x"));
  EXPECT_CONTAINS(world.Text(3, 3), "rank 0 (host h0) has shut down, after " + ended + ". No coll");
}

TEST(AnExceptionThatEndsRankZeroIsNamedByTheOthers) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Submit(2, 2, Allreduce("y"));
  world.Shutdown(0, "KeyError: 'z'");
  world.Deliver();
  EXPECT_CONTAINS(world.Text(2, 2),
                  "rank 0 (host h0) ended with an exception: KeyError: 'z'. Tens");
  world.Complete(2, world.runs(2)[0].plan.sequence, Unavailable("connection reset"), 0);
  world.Deliver();
  world.Lose(2, 0);
  EXPECT_CONTAINS(world.Text(2, 1),
                  "rank 0 (host h0) ended with an exception: KeyError: 'z', while");
}

TEST(AnExceptionOfARankThatLeftInTheMiddleOfAPlanIsNamed) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Shutdown(1, std::string("ValueError: \xff") + std::string(10000, '.'));
  world.Deliver();
  world.Complete(2, world.runs(2)[0].plan.sequence, Unavailable("connection reset"), 1);
  EXPECT_CONTAINS(world.Text(2, 1), "rank 1 (host h1) ended with an exception: ValueError: ?...");
  EXPECT_TRUE(world.Text(2, 1).size() < 2 * kMaxDepartureError);
}

TEST(AnExceptionThatFollowsFromALeaverIsNotTheCause) {
  Engines world(4);
  world.Shutdown(2);  // it has less data
  world.Deliver();
  world.Shutdown(1, "CancelledError: rank 2 has shut down");
  world.Deliver();
  world.Submit(3, 1, Allreduce("x"));
  world.Deliver();
  EXPECT_CONTAINS(world.Text(3, 1), "rank 2 has shut down, after it rank 1, while");
}

}  // namespace
}  // namespace tfring::testing::goodbyes_passed_on_test
