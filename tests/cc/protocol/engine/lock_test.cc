#include <string>
#include <utility>

#include "ops/runtime/protocol/locked/locked_schedule.h"
#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

// Locked schedules, as one rank's state machine sees them. The simulator has the long runs.
namespace tfring::testing::lock_test {
namespace {

Config Locking() {
  Config config = QuietConfig();
  config.lock_schedule = true;
  return config;
}

// Two ranks that have had 'x' four times: the first time in full, then three times as an id.
class LockedWorld : public Engines {
 public:
  LockedWorld() : Engines(2, Locking()) {
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

TEST(WhatWaitsTooLongEndsTheLock) {
  LockedWorld world;
  world.Submit(0, 10, Allreduce("x"));
  EXPECT_EQ(world.deadline(0), world.now + LockTimer::kPatience);
  world.At(world.deadline(0), 0);
  world.Deliver();
  EXPECT_EQ(world.Sent(0, 1, FrameType::kStop), 1);
  EXPECT_TRUE(world.runs(1).back().entry == PlanEntry::kVoid);
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

// How the lock of the world has ended, as the ranks have learned.
void ExpectEnd(const LockedWorld& world, const std::string& text, uint64_t rounds) {
  for (Rank rank : {0, 1}) {
    const std::vector<LockNews>& locks = world.locks(rank);
    ASSERT_EQ(locks.size(), size_t{2});
    EXPECT_EQ(NewsText(locks[0]), "the schedule of 1 batch, 1 tensor is locked");
    EXPECT_EQ(locks[1].id, locks[0].id);
    EXPECT_EQ(NewsText(locks[1]), "the lock of 1 tensor ended after " + std::to_string(rounds) +
                                      (rounds == 1 ? " round: " : " rounds: ") + text);
    EXPECT_EQ(world.lock_rounds(rank), rounds);
  }
}

TEST(AllRanksLearnWhichCallEndedALock) {
  LockedWorld world;
  for (int round = 0; round < 3; ++round) {
    for (Rank rank : {1, 0}) world.Submit(rank, world.next_id, Allreduce("x"));
    world.CompleteLast();
    ++world.next_id;
    EXPECT_EQ(world.lock_rounds(0), static_cast<uint64_t>(round));
  }
  world.Submit(1, 10, Allreduce("metric"));
  world.Deliver();
  ExpectEnd(world, "rank 1 called 'metric', which is not in it", 3);
}

TEST(ACallThatHasChangedIsToldFromOneThatIsNew) {
  LockedWorld world;
  world.Submit(1, 10, Allreduce("x", {77}));
  world.Deliver();
  ExpectEnd(world, "rank 1 called 'x' with another shape or from another line than in it", 0);
}

TEST(AllRanksLearnWhatElseEndedALock) {
  Request join;
  join.name = "join";
  join.kind = CollectiveKind::kJoin;
  Request set;
  set.name = "set";
  set.kind = CollectiveKind::kAddProcessSet;
  set.set_ranks = {0};
  for (const auto& [request, text] :
       {std::pair(join, "rank 1 joined"), std::pair(set, "rank 1 changed the process sets")}) {
    LockedWorld world;
    world.Submit(1, 10, request);
    world.Deliver();
    ExpectEnd(world, text, 0);
  }
  for (const Rank rank : {0, 1}) {
    LockedWorld world;
    world.Shutdown(rank);
    world.Deliver();
    ExpectEnd(world, "rank " + std::to_string(rank) + " shuts down", 0);
  }
  LockedWorld fails;
  EngineEvents withdrawal;
  withdrawal.withdrawals.push_back({kGlobalProcessSet, 0, InvalidArgument(std::string(999, 'n'))});
  fails.Step(1, std::move(withdrawal));
  fails.Deliver();
  const std::string text = NewsText(fails.locks(0).back());
  EXPECT_CONTAINS(text, "after 0 rounds: the step of rank 1 (host h1) failed: InvalidArgument: nn");
  EXPECT_TRUE(text.size() < 2 * kMaxUnlockTextBytes);
}

// The first to freeze is the one that ended the lock, whatever others see meanwhile.
TEST(TheFirstReasonCounts) {
  LockedWorld world;
  world.Submit(1, 10, Allreduce("metric"));
  world.Submit(0, 10, Allreduce("loss"));
  world.Deliver();
  ExpectEnd(world, "rank 0 called 'loss', which is not in it", 0);
}

TEST(WhatWaitedIsNamed) {
  LockedWorld world;
  world.Submit(1, 10, Allreduce("x"));
  world.At(world.deadline(1), 1);
  world.Deliver();
  ExpectEnd(world, "rank 1 waited with 'x' for other ranks for 100 ms or longer", 0);
}

// Two ranks in a lock of one batch of two tensors.
class FusedWorld : public Engines {
 public:
  FusedWorld() : Engines(2, Locking()) {
    for (int round = 0; round < 6; ++round) Together();
  }
  void Together() {
    for (Rank rank : {0, 1}) {
      EngineEvents events;
      events.submissions.emplace_back(next_id, Allreduce("x"));
      events.submissions.emplace_back(next_id + 1, Allreduce("y"));
      Step(rank, std::move(events));
    }
    EndRound();
  }
  // Rank 1 calls 'y' so much later than 'x'.
  void Apart(Duration pause) {
    Submit(1, next_id, Allreduce("x"));
    now += pause;
    Submit(1, next_id + 1, Allreduce("y"));
    Submit(0, next_id, Allreduce("x"));
    Submit(0, next_id + 1, Allreduce("y"));
    EndRound();
  }
  void EndRound() {
    Deliver();
    for (Rank rank : {0, 1}) {
      for (; ended_[rank] < runs(rank).size(); ++ended_[rank]) {
        Complete(rank, runs(rank)[ended_[rank]].plan.sequence);
      }
    }
    Deliver();
    next_id += 2;
  }

  CallId next_id = 1;

 private:
  size_t ended_[2] = {0, 0};
};

// A rank whose own calls are missing is told from one that waits for others.
TEST(WhatIsMissingIsNamedAndNotFusedAgain) {
  FusedWorld world;
  ASSERT_TRUE(world.locks(0).size() == 1);
  EXPECT_EQ(NewsText(world.locks(0)[0]), "the schedule of 1 batch, 2 tensors is locked");
  world.Submit(0, world.next_id, Allreduce("x"));
  world.At(world.deadline(0), 0);
  world.Deliver();
  EXPECT_CONTAINS(NewsText(world.locks(1).back()),
                  "rank 0 had not called 'y' 100 ms or longer after its call of another tensor");
  world.Submit(0, world.next_id + 1, Allreduce("y"));
  for (CallId i : {0, 1}) world.Submit(1, world.next_id + i, Allreduce(i == 0 ? "x" : "y"));
  world.EndRound();
  for (int i = 0; i < 3 && world.locks(0).size() < 3; ++i) world.Together();
  EXPECT_EQ(NewsText(world.locks(0).back()), "the schedule of 2 batches, 2 tensors is locked");
}

TEST(ABatchWhoseCallsComeApartEndsTheLockAndIsCutInTheNext) {
  FusedWorld world;
  for (int i = 1; i < LockedSchedule::kApartRounds; ++i) world.Apart(LockedSchedule::kApart);
  ASSERT_TRUE(world.locks(0).size() == 1);
  world.Apart(LockedSchedule::kApart);
  for (Rank rank : {0, 1}) {
    ASSERT_TRUE(world.locks(rank).size() >= 2);
    EXPECT_CONTAINS(NewsText(world.locks(rank)[1]),
                    "rounds: rank 1 called 'y' 5 ms or longer after another tensor of its batch, "
                    "in 5 rounds in a row");
  }
  for (int i = 0; i < 3 && world.locks(0).size() < 3; ++i) world.Together();
  EXPECT_EQ(NewsText(world.locks(0).back()), "the schedule of 2 batches, 2 tensors is locked");
  for (int i = 0; i < 20; ++i) world.Apart(LockedSchedule::kApart);
  EXPECT_EQ(world.locks(0).size(), size_t{3});
  EXPECT_TRUE(!world.doubled);
}

TEST(FramesOfLocksThatMakeNoSenseEndTheGeneration) {
  for (const FrameType type : {FrameType::kLock, FrameType::kStop, FrameType::kUnlock}) {
    LockedWorld world;
    Frame frame;
    frame.type = type;
    frame.lock.id = 1000;
    frame.lock.batches = {{99}};
    frame.lock.reason.cause = UnlockCause::kJoin;
    world.Receive(1, 0, EncodeFrame(frame));
    world.Submit(1, 10, Allreduce("x"));
    EXPECT_TRUE(world.Code(1, 10) == StatusCode::kInternal);
  }
  LockedWorld world;
  Frame frozen;
  frozen.type = FrameType::kFrozen;
  frozen.lock.id = 1000;
  frozen.lock.reason.cause = UnlockCause::kJoin;
  world.Receive(0, 1, EncodeFrame(frozen));
  EXPECT_TRUE(world.abort(0).has_value());
  // Who is the first to freeze has a reason of its own.
  LockedWorld other;
  frozen.lock.id = other.locks(0).back().id;
  frozen.lock.reason = {};
  other.Receive(0, 1, EncodeFrame(frozen));
  ASSERT_TRUE(other.abort(0).has_value());
  EXPECT_CONTAINS(other.abort(0)->ToString(), "does not say why");
}

}  // namespace
}  // namespace tfring::testing::lock_test
