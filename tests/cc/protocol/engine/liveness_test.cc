#include <string>

#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Which silence counts: a peer's, not the time in which this process did not run itself.
namespace tfring::testing::liveness_test {
namespace {

Config WithHeartbeats() {
  Config config = QuietConfig();
  config.heartbeat_interval = 5 * kSecond;
  config.heartbeat_timeout = 30 * kSecond;
  return config;
}

std::string Heartbeat() { return EncodeFrame(Frame()); }

// Every rank but those in `mute` acts whenever it has to, until `end`.
void RunUntil(TimePoint end, int size, Engines* world) {
  while (world->now < end) {
    TimePoint next = end;
    for (Rank rank = 0; rank < size; ++rank) {
      if (world->mute.count(rank) == 0) next = std::min(next, world->deadline(rank));
    }
    world->now = std::max(world->now, next);
    for (Rank rank = 0; rank < size; ++rank) {
      if (world->mute.count(rank) == 0) world->At(world->now, rank);
    }
    world->Deliver();
  }
}

TEST(AJobThatWasStoppedAsAWholeGoesOn) {
  for (const Rank first : {0, 1, 2}) {
    Engines world(3, WithHeartbeats());
    RunUntil(world.now + 7 * kSecond, 3, &world);
    world.Submit(0, 1, Allreduce("x"));
    for (int stops = 0; stops < 3; ++stops) {
      world.now += 40 * kSecond;
      // Rank `first` goes on 20 s before the others.
      world.At(world.now, first);
      for (int second = 0; second < 20; ++second) world.At(world.now + kSecond, first);
      RunUntil(world.now + 12 * kSecond, 3, &world);
    }
    for (Rank rank : {1, 2}) world.Submit(rank, 1, Allreduce("x"));
    world.Deliver();
    for (Rank rank : {0, 1, 2}) EXPECT_EQ(world.runs(rank).size(), size_t{1});
  }
}

TEST(ADeadPeerIsFoundAlsoByARankThatAlwaysRunsLate) {
  Engines world(2, WithHeartbeats());
  world.Receive(0, 1, Heartbeat());
  world.Submit(0, 1, Allreduce("x"));
  const TimePoint start = world.now;
  for (int i = 0; i < 100 && !world.Ended(0, 1); ++i) world.At(world.deadline(0) + 2 * kSecond, 0);
  EXPECT_EQ(world.Code(0, 1), StatusCode::kUnavailable);
  EXPECT_TRUE(world.now - start >= 30 * kSecond);
  EXPECT_TRUE(world.now - start <= 60 * kSecond);
}

TEST(APeerThatHasNotBeenHeardOfHasTheTimeOfTheStart) {
  Engines world(3, WithHeartbeats());
  const TimePoint start = world.now;
  world.Submit(0, 1, Allreduce("x"));
  world.mute.insert(2);  // never heard of; 60 s
  RunUntil(start + 59 * kSecond, 3, &world);
  EXPECT_TRUE(!world.Ended(0, 1));
  RunUntil(start + 60 * kSecond, 3, &world);
  EXPECT_CONTAINS(world.Text(0, 1), "rank 2 (host h2) was lost");
}

TEST(BytesCountAsLifeAlsoWithoutAWholeFrame) {
  Engines world(2, WithHeartbeats());
  world.Receive(0, 1, Heartbeat());
  world.Submit(0, 1, Allreduce("x"));
  const TimePoint start = world.now;
  for (int second = 1; second <= 100; ++second) {  // a large frame on a slow line
    world.now = start + second * kSecond;
    EngineEvents events;
    events.control.push_back({ControlEvent::Kind::kAlive, 1, "", ""});
    world.Step(0, std::move(events));
  }
  EXPECT_TRUE(!world.Ended(0, 1));
  EXPECT_EQ(world.deadline(0) > world.now, true);
}

TEST(AStopDoesNotCountForTheStallLimit) {
  Config config = WithHeartbeats();
  config.stall_warning = 10 * kSecond;
  config.stall_shutdown = 60 * kSecond;
  Engines world(2, config);
  RunUntil(world.now + 7 * kSecond, 2, &world);
  world.Submit(0, 1, Allreduce("x"));
  world.now += 3600 * kSecond;
  RunUntil(world.now + 20 * kSecond, 2, &world);
  EXPECT_TRUE(!world.Ended(0, 1));
  world.Submit(1, 1, Allreduce("x"));
  world.Deliver();
  EXPECT_EQ(world.runs(1).size(), size_t{1});
}

}  // namespace
}  // namespace tfring::testing::liveness_test
