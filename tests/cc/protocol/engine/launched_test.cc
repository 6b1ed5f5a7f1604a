#include <string>

#include "ops/runtime/protocol/engine/limits.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Plans that a device has taken over (launched) and that have not ended, and what it means if they
// fail.
namespace tfring::testing::launched_test {
namespace {

Config OneAtATime() {
  Config config = QuietConfig();
  config.max_plans_in_flight = 1;
  return config;
}

void Launch(Engines* world, Rank rank, uint64_t sequence) {
  Completion completion;
  completion.sequence = sequence;
  completion.stage = CompletionStage::kLaunched;
  world->Report(rank, completion);
}

void BreakGroup(Engines* world, Rank rank, uint64_t sequence) {
  Completion completion;
  completion.sequence = sequence;
  completion.status = Unavailable("NCCL: remote process exited");
  completion.suspects_unknown_peer = true;
  world->Report(rank, completion);
}

uint64_t SequenceOf(const Engines& world, Rank rank, size_t plan) {
  return world.runs(rank).at(plan).plan.sequence;
}

TEST(ALaunchedPlanMakesRoomForTheNext) {
  Engines world(2, OneAtATime());
  for (const auto& [id, name] : {std::pair(1, "x"), {2, "y"}, {3, "z"}}) {
    world.SubmitOnAll(id, name);
  }
  ASSERT_EQ(world.runs(0).size(), 1u);
  Launch(&world, 0, SequenceOf(world, 0, 0));
  // "y" and "z" were complete by then, so they are one plan.
  ASSERT_EQ(world.runs(0).size(), 2u);
  EXPECT_TRUE(!world.Ended(0, 1));
  EXPECT_EQ(world.in_flight(0), 3u);
  world.SubmitOnAll(4, "w");
  world.Complete(0, SequenceOf(world, 0, 0));
  EXPECT_EQ(world.Code(0, 1), StatusCode::kOk);
  // The window is that of the second plan: the end of the first frees nothing more.
  EXPECT_EQ(world.runs(0).size(), 2u);
  Launch(&world, 0, SequenceOf(world, 0, 1));
  EXPECT_EQ(world.runs(0).size(), 3u);
  EXPECT_TRUE(!world.doubled);
}

TEST(AFailureAfterTheLaunchEndsTheGeneration) {
  for (const Status& failure :
       {Internal("the device reports an error"), Unimplemented("no such kernel")}) {
    Engines world(2);
    world.SubmitOnAll(1, "x");
    Launch(&world, 1, SequenceOf(world, 1, 0));
    world.Complete(1, SequenceOf(world, 1, 0), failure);
    EXPECT_EQ(world.Code(1, 1), failure.code());
    world.Deliver();
    for (Rank rank : {0, 1}) {
      world.Submit(rank, 2, Allreduce("y"));
      EXPECT_CONTAINS(world.Text(rank, 2), "rank 1 (host h1) could not run 'x': ");
      EXPECT_CONTAINS(world.Text(rank, 2), failure.message());
    }
  }
}

TEST(WhatIsKnownIsSaidIfNobodyIsFound) {
  for (Rank noticed : {0, 1}) {
    Engines world(3);
    world.SubmitOnAll(1, "x");
    BreakGroup(&world, noticed, SequenceOf(world, noticed, 0));
    world.Deliver();
    world.SubmitOnAll(2, "y");  // nothing runs on the aborted backend
    EXPECT_EQ(world.runs(noticed).size(), 1u);
    world.At(world.now + kUnknownGrace - 1, noticed);
    EXPECT_TRUE(!world.Ended(noticed, 1));
    world.At(world.now + 1, noticed);
    world.Deliver();
    for (Rank rank : {0, 1, 2}) {
      world.Submit(rank, 3, Allreduce("z"));
      EXPECT_EQ(world.Code(rank, 3), StatusCode::kUnavailable);
      EXPECT_CONTAINS(world.Text(rank, 3), "rank " + std::to_string(noticed));
      EXPECT_CONTAINS(world.Text(rank, 3), "could not run 'x': NCCL: remote process exited");
      EXPECT_CONTAINS(world.Text(rank, 3), "no rank was found to be");
    }
    EXPECT_EQ(world.Text(noticed, 1), world.Text(noticed, 3));
    EXPECT_TRUE(!world.doubled);
  }
}

TEST(ARankThatHasLeftExplainsABrokenGroup) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Shutdown(2, "ValueError: bad");
  world.Deliver();
  BreakGroup(&world, 1, SequenceOf(world, 1, 0));
  world.At(world.now + kUnknownGrace, 1);
  EXPECT_EQ(world.Code(1, 1), StatusCode::kCancelled);
  EXPECT_CONTAINS(world.Text(1, 1), "rank 2 (host h2) ended with an exception: ValueError: bad");
}

}  // namespace
}  // namespace tfring::testing::launched_test
