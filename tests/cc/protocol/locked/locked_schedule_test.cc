#include "ops/runtime/protocol/locked/locked_schedule.h"

#include "ops/runtime/protocol/locked/lock_coordinator.h"
#include "tests/cc/test.h"

namespace tfring::testing::locked_schedule_test {
namespace {

TEST(ABatchIsEnteredWhenAllItsCallsWaitAndThoseBeforeItWereEntered) {
  LockedSchedule lock(40, {{1, 2}, {3}});
  EXPECT_TRUE(lock.Has(3) && !lock.Has(4));
  lock.OnCall(3, 0);
  lock.OnCall(2, 0);
  EXPECT_TRUE(!lock.Enter(0).has_value());
  lock.OnCall(1, 0);
  EXPECT_EQ(lock.Enter(0).value(), uint64_t{0});
  EXPECT_EQ(lock.Enter(0).value(), uint64_t{1});
  EXPECT_TRUE(!lock.Enter(0).has_value());
  lock.OnCall(1, 0);
  lock.OnCall(2, 0);
  EXPECT_EQ(lock.Enter(0).value(), uint64_t{2});
  EXPECT_EQ(lock.SequenceOf(2), uint64_t{43});
  EXPECT_TRUE(lock.batch(2) == (LockedBatch{1, 2}));
}

TEST(ATensorMayComeTwiceInARound) {
  LockedSchedule lock(1, {{7}, {8}, {7}});
  lock.OnCall(7, 0);
  EXPECT_TRUE(lock.Enter(0).has_value());
  lock.OnCall(7, 0);
  EXPECT_TRUE(!lock.Enter(0).has_value());
  lock.OnCall(8, 0);
  EXPECT_TRUE(lock.Enter(0).has_value() && lock.Enter(0).has_value());
  EXPECT_EQ(lock.entered(), uint64_t{3});
}

TEST(ARankThatHasFrozenEntersNothing) {
  LockedSchedule lock(1, {{7}});
  lock.OnCall(7, 0);
  lock.Freeze();
  EXPECT_TRUE(!lock.Enter(0).has_value() && !lock.waits());
}

TEST(TheTimerRunsWhileSomethingWaitsAndNothingMoves) {
  LockedSchedule lock(1, {{7}, {8}});
  LockTimer timer;
  timer.Update(&lock, 5);
  EXPECT_EQ(timer.deadline(), kNever);
  lock.OnCall(7, 0);
  timer.Update(&lock, 10);
  EXPECT_EQ(timer.deadline(), 10 + LockTimer::kPatience);
  EXPECT_TRUE(lock.Enter(0).has_value());
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

// One round of two batches: of 1, and of 2 and 3, where the call of 3 comes `apart` later.
void Round(LockedSchedule* lock, TimePoint start, Duration apart, Duration before = 0) {
  lock->OnCall(2, start);
  lock->OnCall(1, start + before);
  EXPECT_TRUE(lock->Enter(start + before).has_value());
  EXPECT_TRUE(lock->Apart().empty());
  lock->OnCall(3, start + before + apart);
  EXPECT_TRUE(lock->Enter(start + before + apart).has_value());
}

TEST(CallsThatComeApartInRoundsInARowAreNoticed) {
  LockedSchedule lock(1, {{1}, {2, 3}});
  TimePoint now = kSecond;
  for (int again = 0; again < 2; ++again, now += kSecond) {
    for (int i = 1; i < LockedSchedule::kApartRounds; ++i, now += kSecond) {
      Round(&lock, now, LockedSchedule::kApart);
      EXPECT_TRUE(lock.Apart().empty());
    }
    Round(&lock, now, LockedSchedule::kApart - 1);
    EXPECT_TRUE(lock.Apart().empty());
  }
  for (int i = 1; i <= LockedSchedule::kApartRounds; ++i, now += kSecond) {
    EXPECT_TRUE(lock.Apart().empty());
    Round(&lock, now, LockedSchedule::kApart);
  }
  EXPECT_TRUE(lock.Apart() == LockedBatch{2});
}

// Without the batch before it could not have begun.
TEST(TheTimeBeforeABatchMayBeginDoesNotCount) {
  LockedSchedule lock(1, {{1}, {2, 3}});
  for (int i = 0; i < 2 * LockedSchedule::kApartRounds; ++i) {
    Round(&lock, i * kSecond, 0, LockedSchedule::kApart);
    EXPECT_TRUE(lock.Apart().empty());
  }
}

TEST(OnlyCallsThatAreEarlyInAllOfTheseRoundsAreEarly) {
  LockedSchedule lock(1, {{1, 2, 3}});
  TimePoint now = kSecond;
  const auto round = [&](const LockedBatch& order) {
    for (uint32_t id : order) {
      lock.OnCall(id, now);
      now += LockedSchedule::kApart;
    }
    EXPECT_TRUE(lock.Enter(now - LockedSchedule::kApart).has_value());
  };
  for (int i = 0; i < 10; ++i) {
    round({1, 2, 3});
    round({3, 2, 1});
    EXPECT_TRUE(lock.Apart().empty());
  }
  for (int i = 0; i < LockedSchedule::kApartRounds; ++i) {
    EXPECT_TRUE(lock.Apart().empty());
    round(i == 0 ? LockedBatch{1, 3, 2} : LockedBatch{1, 2, 3});
  }
  EXPECT_TRUE(lock.Apart() == LockedBatch{1});
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
  LockMessage lock;
  lock.id = 9;
  lock.batches = {{1}, {2, 3}};
  coordinator.Start(lock);
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
  EXPECT_TRUE(coordinator.batch(5) == lock.batches[1]);
}

}  // namespace
}  // namespace tfring::testing::locked_schedule_test
