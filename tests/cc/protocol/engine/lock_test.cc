#include <string>
#include <utility>

#include "ops/runtime/protocol/locked/locked_schedule.h"
#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Locked schedules, as one rank's state machine sees them. The simulator has the long runs.
namespace tfring::testing {
namespace {

Config Locking() {
  Config config = QuietConfig();
  config.lock_schedule = true;
  return config;
}

// Two ranks that have had 'x' four times: the first time in full, then three times as an id.
class LockedWorld : public World {
 public:
  LockedWorld() : World(2, Locking()) {
    for (int round = 0; round < 4; ++round) {
      SubmitOnAll(next_id, "x");
      CompleteLast();
      ++next_id;
    }
  }
  void CompleteLast() {
    for (Rank rank : {0, 1}) Complete(rank, runs(rank).back().plan.sequence);
    Deliver();
  }
  void Recall(Rank rank, uint64_t sequence) {
    Completion completion;
    completion.sequence = sequence;
    completion.recalled = true;
    Report(rank, std::move(completion));
  }
  int Frames(FrameType type) const { return Sent(0, 1, type) + Sent(1, 0, type); }

  CallId next_id = 1;
};

TEST(ALockedStepNeedsNoFrame) {
  LockedWorld world;
  EXPECT_EQ(world.Sent(0, 1, FrameType::kLock), 1);
  const int plans = world.Frames(FrameType::kPlans);
  const int requests = world.Frames(FrameType::kRequests);
  for (int round = 0; round < 10; ++round) {
    world.Submit(1, world.next_id, Allreduce("x"));
    EXPECT_TRUE(world.runs(1).back().entry == PlanEntry::kEntered);
    world.Submit(0, world.next_id, Allreduce("x"));
    EXPECT_EQ(world.runs(0).back().plan.sequence, world.runs(1).back().plan.sequence);
    world.CompleteLast();
    EXPECT_EQ(world.Text(0, world.next_id), "Ok");
    EXPECT_EQ(world.Text(1, world.next_id++), "Ok");
  }
  EXPECT_EQ(world.Frames(FrameType::kPlans), plans);
  EXPECT_EQ(world.Frames(FrameType::kRequests), requests);
  EXPECT_EQ(world.Frames(FrameType::kStop) + world.Frames(FrameType::kFrozen), 0);
}

TEST(ACallThatDoesNotFitRecallsWhatOthersHaveEntered) {
  LockedWorld world;
  world.Submit(0, 10, Allreduce("x"));
  const uint64_t batch = world.runs(0).back().plan.sequence;
  world.Submit(1, 10, Allreduce("metric"));
  world.Deliver();
  EXPECT_TRUE(world.runs(1).back().entry == PlanEntry::kVoid);
  EXPECT_EQ(world.runs(1).back().plan.sequence, batch);
  world.Recall(0, batch);
  world.Recall(1, batch);
  EXPECT_TRUE(!world.Ended(0, 10));
  world.Submit(1, 11, Allreduce("x"));
  world.Deliver();
  EXPECT_TRUE(world.runs(0).back().plan.sequence > batch);
  EXPECT_TRUE(world.runs(0).back().entry == PlanEntry::kPlanned);
  world.CompleteLast();
  EXPECT_EQ(world.Text(0, 10), "Ok");
  EXPECT_EQ(world.Text(1, 11), "Ok");
  EXPECT_TRUE(!world.Ended(1, 10) && !world.doubled);
}

TEST(ABatchThatAllRanksHaveEnteredRunsAfterTheLock) {
  LockedWorld world;
  for (Rank rank : {0, 1}) world.Submit(rank, 10, Allreduce("x"));
  EngineEvents unlock;
  unlock.unlock = true;
  world.Step(1, std::move(unlock));
  world.Deliver();
  EXPECT_EQ(world.Sent(0, 1, FrameType::kUnlock), 1);
  world.CompleteLast();
  for (Rank rank : {0, 1}) EXPECT_EQ(world.Text(rank, 10), "Ok");
}

TEST(TheResultOfARecalledCallWaitsForItsMemory) {
  LockedWorld world;
  world.Submit(0, 10, Allreduce("x"));
  const uint64_t batch = world.runs(0).back().plan.sequence;
  EngineEvents fails;
  fails.withdrawals.push_back({kGlobalProcessSet, 0, InvalidArgument("NaN")});
  world.Step(1, std::move(fails));
  world.Deliver();
  EXPECT_TRUE(!world.Ended(0, 10));
  EXPECT_EQ(world.in_flight(0), size_t{1});
  world.Recall(0, batch);
  EXPECT_TRUE(world.Code(0, 10) == StatusCode::kAborted);
  EXPECT_EQ(world.in_flight(0), size_t{0});
}

TEST(WhatWaitsTooLongEndsTheLock) {
  LockedWorld world;
  world.Submit(0, 10, Allreduce("x"));
  EXPECT_EQ(world.deadline(0), world.now + LockTimer::kPatience);
  world.At(world.deadline(0), 0);
  world.Deliver();
  EXPECT_EQ(world.Sent(0, 1, FrameType::kStop), 1);
  EXPECT_TRUE(world.runs(1).back().entry == PlanEntry::kVoid);
}

TEST(AGoodbyeIsAnsweredWhenTheLockIsOver) {
  LockedWorld world;
  world.Submit(0, 10, Allreduce("x"));
  const uint64_t batch = world.runs(0).back().plan.sequence;
  world.Shutdown(1);
  EXPECT_EQ(world.Sent(1, 0, FrameType::kFrozen), 1);
  world.Deliver();
  EXPECT_TRUE(world.runs(1).back().entry == PlanEntry::kVoid && !world.finished(1));
  world.Recall(1, batch);
  EXPECT_TRUE(world.finished(1));
  world.Recall(0, batch);
  EXPECT_TRUE(world.Code(0, 10) == StatusCode::kCancelled);
}

TEST(RankZeroLeavesWhenTheLockIsOver) {
  LockedWorld world;
  world.Submit(1, 10, Allreduce("x"));
  const uint64_t batch = world.runs(1).back().plan.sequence;
  world.Shutdown(0);
  EXPECT_EQ(world.Sent(0, 1, FrameType::kGoodbye), 0);
  world.Submit(0, 11, Allreduce("x"));
  EXPECT_TRUE(world.Code(0, 11) == StatusCode::kCancelled);
  world.Deliver();
  EXPECT_EQ(world.Sent(0, 1, FrameType::kGoodbye), 1);
  world.Recall(0, batch);
  EXPECT_TRUE(world.finished(0));
}

TEST(ABatchThatEndsWithoutARankEndsTheGeneration) {
  LockedWorld world;
  world.Submit(0, 10, Allreduce("x"));
  world.Complete(0, world.runs(0).back().plan.sequence);
  world.Submit(1, 10, Allreduce("metric"));
  world.Deliver();
  EXPECT_TRUE(world.Code(1, 10) == StatusCode::kInternal);
  EXPECT_CONTAINS(world.Text(1, 10), "has ended, but not all ranks have entered it");
}

TEST(FramesOfLocksThatMakeNoSenseEndTheGeneration) {
  for (const FrameType type : {FrameType::kLock, FrameType::kStop, FrameType::kUnlock}) {
    LockedWorld world;
    Frame frame;
    frame.type = type;
    frame.lock.id = 1000;
    frame.lock.batches = {{99}};
    world.Receive(1, 0, EncodeFrame(frame));
    world.Submit(1, 10, Allreduce("x"));
    EXPECT_TRUE(world.Code(1, 10) == StatusCode::kInternal);
  }
  LockedWorld world;
  Frame frozen;
  frozen.type = FrameType::kFrozen;
  frozen.lock.id = 1000;
  world.Receive(0, 1, EncodeFrame(frozen));
  EXPECT_TRUE(world.abort(0).has_value());
}

}  // namespace
}  // namespace tfring::testing
