#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Calls and their results, heartbeats, and frames that make no sense.
namespace tfring::testing::step_test {
namespace {

// Rank 0 does not wait for its own completion of a plan that moves no data.
TEST(PlansWithoutDataDoNotCountAsInFlight) {
  Config config = QuietConfig();
  config.max_plans_in_flight = 1;
  Engines world(2, config);
  for (Rank rank : {0, 1}) world.Submit(rank, 1, Join());
  world.Deliver();
  EXPECT_EQ(world.runs(0).size(), 1u);
  world.SubmitOnAll(2, "x");
  ASSERT_EQ(world.runs(0).size(), 2u);
  EXPECT_EQ(world.runs(0)[1].members, (std::vector<Rank>{0, 1}));
}

TEST(HeartbeatsGoOutWhenNothingElseDoes) {
  Config config = QuietConfig();
  config.heartbeat_interval = 5 * kSecond;
  Engines world(3, config);
  const TimePoint start = world.now;
  EXPECT_EQ(world.deadline(1), start + 5 * kSecond);
  world.At(start + 5 * kSecond - 1, 1);
  EXPECT_EQ(world.Sent(1, 0, FrameType::kHeartbeat), 0);
  world.At(start + 5 * kSecond, 1);
  EXPECT_EQ(world.Sent(1, 0, FrameType::kHeartbeat), 1);
  EXPECT_EQ(world.deadline(1), start + 10 * kSecond);
  world.now = start + 8 * kSecond;
  world.Submit(1, 1, Allreduce("x"));
  EXPECT_EQ(world.deadline(1), start + 13 * kSecond);
  world.At(start + 5 * kSecond, 0);
  EXPECT_EQ(world.Sent(0, 1, FrameType::kHeartbeat), 1);
  EXPECT_EQ(world.Sent(0, 2, FrameType::kHeartbeat), 1);
}

TEST(ASilentPeerIsLostAfterTheTimeout) {
  Config config = QuietConfig();
  config.heartbeat_interval = 5 * kSecond;
  config.heartbeat_timeout = 30 * kSecond;
  Engines world(3, config);
  const TimePoint start = world.now;
  world.Receive(0, 2, EncodeFrame(Frame()));
  world.Submit(0, 1, Allreduce("x"));
  world.Submit(1, 1, Allreduce("x"));
  world.mute.insert(2);
  for (int tick = 1; tick < 6; ++tick) {
    for (Rank rank : {0, 1}) world.At(start + tick * 5 * kSecond, rank);
    world.Deliver();
  }
  EXPECT_TRUE(!world.Ended(0, 1));
  EXPECT_EQ(world.deadline(0), start + 30 * kSecond);
  world.At(start + 30 * kSecond, 0);
  world.Deliver();
  for (Rank rank : {0, 1}) {
    EXPECT_EQ(world.Code(rank, 1), StatusCode::kUnavailable);
    EXPECT_CONTAINS(world.Text(rank, 1), "rank 2 (host h2) was lost: no heartbeat for 30 s");
  }
}

TEST(AnUnreadableFrameLosesItsSender) {
  Engines world(3);
  world.Submit(0, 1, Allreduce("x"));
  world.Receive(0, 2, std::string("\x05\xff\xff\xff", 4));
  world.Deliver();
  EXPECT_EQ(world.Code(0, 1), StatusCode::kUnavailable);
  EXPECT_CONTAINS(world.Text(0, 1), "rank 2 (host h2) was lost: it sent a frame");
  world.Submit(1, 1, Allreduce("x"));
  EXPECT_CONTAINS(world.Text(1, 1), "rank 2 (host h2) was lost");
}

TEST(NonsenseInTheNegotiationEndsTheGenerationForAll) {
  for (const std::string& bytes : {std::string(), std::string("\x01\xff\xff\xff\xff", 5)}) {
    Engines world(3);
    world.Submit(1, 1, Allreduce("x"));
    world.Deliver();
    world.Receive(0, 2, bytes);
    world.Deliver();
    EXPECT_TRUE(world.Ended(1, 1));
    EXPECT_CONTAINS(world.Text(1, 1), "rank 2");
    EXPECT_TRUE(world.abort(0).has_value() && world.abort(1).has_value());
  }
}

TEST(FramesThatOnlyRankZeroMaySendAreRefused) {
  for (FrameType type : {FrameType::kAbort, FrameType::kGoodbye}) {
    Engines world(3);
    world.Submit(0, 1, Allreduce("x"));
    Frame frame;
    frame.type = type;
    frame.rank = 1;
    frame.departures = {{1, ""}};
    frame.status = Internal("made up");
    world.Receive(0, 2, EncodeFrame(frame));
    EXPECT_CONTAINS(world.Text(0, 1), "rank 2 (host h2) was lost");
  }
}

TEST(GoodbyesOfOthersOrOfNoRankLoseTheirSender) {
  const auto goodbye = [](std::vector<Departure> departures) {
    Frame frame;
    frame.type = FrameType::kGoodbye;
    frame.departures = std::move(departures);
    return EncodeFrame(frame);
  };
  for (const std::string& bytes : {goodbye({{2, ""}, {1, ""}}), goodbye({{2, ""}, {2, ""}}),
                                   goodbye({{-1, ""}}), goodbye({{3, ""}}), goodbye({})}) {
    Engines world(3);
    world.Submit(0, 1, Allreduce("x"));
    world.Receive(0, 2, bytes);
    EXPECT_CONTAINS(world.Text(0, 1), "rank 2 (host h2) was lost");
  }
  // Of a rank that does not leave, among others.
  for (const std::string& bytes : {goodbye({{2, ""}, {1, ""}}), goodbye({{3, ""}, {2, ""}})}) {
    Engines world(3);
    world.Submit(1, 1, Allreduce("x"));
    world.Receive(1, 0, bytes);
    EXPECT_CONTAINS(world.Text(1, 1), "rank 0 (host h0) was lost: it sent a goodbye for rank");
  }
}

}  // namespace
}  // namespace tfring::testing::step_test
