#include "ops/runtime/protocol/locked/locked_schedule.h"

#include "ops/runtime/protocol/locked/lock_coordinator.h"
#include "tests/cc/test.h"

namespace tfring::testing::locked_schedule_test {
namespace {

TEST(ABatchIsEnteredWhenAllItsCallsWaitAndThoseBeforeItWereEntered) {
  LockedSchedule lock(40, {{1, 2}, {3}});
  EXPECT_TRUE(lock.Has(3) && !lock.Has(4));
  lock.OnCall(3);
  lock.OnCall(2);
  EXPECT_TRUE(!lock.Enter().has_value());
  lock.OnCall(1);
  EXPECT_EQ(lock.Enter().value(), uint64_t{0});
  EXPECT_EQ(lock.Enter().value(), uint64_t{1});
  EXPECT_TRUE(!lock.Enter().has_value());
  lock.OnCall(1);
  lock.OnCall(2);
  EXPECT_EQ(lock.Enter().value(), uint64_t{2});
  EXPECT_EQ(lock.SequenceOf(2), uint64_t{43});
  EXPECT_TRUE(lock.batch(2) == (LockedBatch{1, 2}));
}

TEST(ATensorMayComeTwiceInARound) {
  LockedSchedule lock(1, {{7}, {8}, {7}});
  lock.OnCall(7);
  EXPECT_TRUE(lock.Enter().has_value());
  lock.OnCall(7);
  EXPECT_TRUE(!lock.Enter().has_value());
  lock.OnCall(8);
  EXPECT_TRUE(lock.Enter().has_value() && lock.Enter().has_value());
  EXPECT_EQ(lock.entered(), uint64_t{3});
}

TEST(ARankThatHasFrozenEntersNothing) {
  LockedSchedule lock(1, {{7}});
  lock.OnCall(7);
  lock.Freeze();
  EXPECT_TRUE(!lock.Enter().has_value() && !lock.waits());
}

TEST(TheTimerRunsWhileSomethingWaitsAndNothingMoves) {
  LockedSchedule lock(1, {{7}, {8}});
  LockTimer timer;
  timer.Update(&lock, 5);
  EXPECT_EQ(timer.deadline(), kNever);
  lock.OnCall(7);
  timer.Update(&lock, 10);
  EXPECT_EQ(timer.deadline(), 10 + LockTimer::kPatience);
  EXPECT_TRUE(lock.Enter().has_value());
  timer.Update(&lock, 20);  // the data of the batch
  timer.Update(&lock, 30);
  const TimePoint due = 20 + LockTimer::kPatience;
  EXPECT_EQ(timer.deadline(), due);
  EXPECT_TRUE(!timer.Expired(due - 1, 0));
  EXPECT_TRUE(!timer.Expired(due, 1));  // data has moved
  EXPECT_EQ(timer.deadline(), due + LockTimer::kPatience);
  timer.PutOff(5);
  EXPECT_TRUE(!timer.Expired(due + LockTimer::kPatience, 1));
  EXPECT_TRUE(timer.Expired(due + LockTimer::kPatience + 5, 1));
  lock.OnEnded();
  timer.Update(&lock, 40);
  EXPECT_EQ(timer.deadline(), kNever);
  timer.Update(nullptr, 50);
  EXPECT_EQ(timer.deadline(), kNever);
}

LockMessage Frozen(uint64_t id, uint64_t entered, UnlockCause cause = UnlockCause::kFollows) {
  LockMessage message;
  message.id = id;
  message.entered = entered;
  message.reason.cause = cause;
  return message;
}

TEST(ALockEndsWhenAllRanksHaveFrozen) {
  LockCoordinator coordinator(3);
  EXPECT_TRUE(!coordinator.OnFrozen(1, Frozen(9, 0)).ok());
  coordinator.Start(9);
  EXPECT_CONTAINS(coordinator.OnFrozen(1, Frozen(9, 5)).message(), "does not say why");
  EXPECT_TRUE(coordinator.OnFrozen(1, Frozen(9, 5, UnlockCause::kOtherCall)).ok());
  EXPECT_CONTAINS(coordinator.OnFrozen(1, Frozen(9, 5)).message(), "had frozen before");
  EXPECT_CONTAINS(coordinator.OnFrozen(2, Frozen(8, 5)).message(), "but the lock is 9");
  EXPECT_TRUE(coordinator.OnFrozen(0, Frozen(9, 7)).ok());
  EXPECT_TRUE(!coordinator.TakeUnlock().has_value());
  EXPECT_TRUE(coordinator.OnFrozen(2, Frozen(9, 6)).ok());
  const auto unlock = coordinator.TakeUnlock();
  ASSERT_TRUE(unlock.has_value());
  EXPECT_TRUE(unlock->id == 9 && unlock->entered == 5 && unlock->high == 7);
  EXPECT_TRUE(unlock->rank == 1 && unlock->reason.cause == UnlockCause::kOtherCall);
  EXPECT_TRUE(!coordinator.locked());
  EXPECT_EQ(coordinator.entered(2), uint64_t{6});
}

}  // namespace
}  // namespace tfring::testing::locked_schedule_test
