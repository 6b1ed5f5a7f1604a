#include "ops/runtime/protocol/locked/lock_detector.h"

#include <vector>

#include "tests/cc/test.h"

namespace tfring::testing::lock_detector_test {
namespace {

using Batches = std::vector<LockedBatch>;

Batches Segment(LockDetector* detector, const Batches& batches) {
  for (const LockedBatch& batch : batches) detector->OnPlan(batch);
  return detector->OnQuiet();
}

// After how many rounds of these segments, each of one plan, it is locked; 0 if never.
int RoundsUntilLocked(LockDetector* detector, const Batches& round, int limit = 100) {
  for (int number = 1; number <= limit; ++number) {
    for (const LockedBatch& batch : round) {
      if (!Segment(detector, {batch}).empty()) return number;
    }
  }
  return 0;
}

TEST(FiveAreWhereSomeAreFusedInAllOfThem) {
  LockDetector detector;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Segment(&detector, {{1, 2}, {3}}).empty());
  EXPECT_TRUE(Segment(&detector, {{1, 2}, {3}}) == (Batches{{1, 2}, {3}}));
  LockDetector apart;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Segment(&apart, {{1, 2}}).empty());
  EXPECT_TRUE(Segment(&apart, {{1}, {2}}) == (Batches{{1}, {2}}));
}

TEST(ALockFusesWhatWasFusedInEachRound) {
  LockDetector detector;
  for (int i = 0; i < 3; ++i) Segment(&detector, {{1, 2}, {3, 4, 5}});
  Segment(&detector, {{2}, {1, 3, 4}, {5}});
  EXPECT_TRUE(Segment(&detector, {{3, 2, 1, 4}, {5}}) == (Batches{{2}, {1}, {3, 4}, {5}}));
}

// One round says little, and would take a fusion away for ever.
TEST(TheLastLockComesBackFusedAsItWas) {
  LockDetector detector;
  for (int i = 0; i < 5; ++i) Segment(&detector, {{1, 2}, {3}});
  detector.OnUnlock(100);
  EXPECT_TRUE(Segment(&detector, {{3}, {1}, {2}}) == (Batches{{3}, {1, 2}}));
  detector.OnUnlock(100);
  EXPECT_TRUE(Segment(&detector, {{1, 3, 2}}) == (Batches{{3}, {1, 2}}));
}

TEST(ABatchWhoseCallsCameApartIsCut) {
  LockDetector detector;
  for (int i = 0; i < 5; ++i) Segment(&detector, {{1, 2, 4}, {3, 5}});
  detector.OnUnlock(100, {2, 1});
  EXPECT_TRUE(Segment(&detector, {{1, 2, 4}, {3, 5}}) == (Batches{{1, 2}, {4}, {3, 5}}));
  detector.OnUnlock(100, {3});
  EXPECT_TRUE(Segment(&detector, {{1, 2, 4}, {3, 5}}) == (Batches{{1, 2}, {4}, {3}, {5}}));
}

TEST(ARoundMayHaveSeveralSegmentsAndOneOfThemTwice) {
  LockDetector detector;
  const Batches round = {{1}, {2}, {1}, {3}};
  Batches lock;
  int segments = 0;
  while (lock.empty() && segments < 100) {
    lock = Segment(&detector, {round[static_cast<size_t>(segments++ % 4)]});
  }
  EXPECT_EQ(lock.size(), size_t{4});
  EXPECT_TRUE(segments <= 16);
  for (size_t i = 0; i < lock.size(); ++i) {
    EXPECT_TRUE(lock[i] == round[(static_cast<size_t>(segments) + i) % 4]);
  }
}

TEST(TheLastLockComesBackAfterOneRound) {
  LockDetector detector;
  EXPECT_EQ(RoundsUntilLocked(&detector, {{1}, {2}}), 3);
  detector.OnUnlock(100);
  detector.OnOtherPlan();
  detector.OnQuiet();
  EXPECT_EQ(RoundsUntilLocked(&detector, {{1}, {2}}), 1);
}

TEST(ShortLocksNeedMoreRoundsEachTimeAndALongOneFew) {
  LockDetector detector;
  int before = 0;
  for (int i = 0; i < 6; ++i) {
    const int rounds = RoundsUntilLocked(&detector, {{1}, {2}}, 2000);
    EXPECT_TRUE(rounds >= before && rounds > 0);
    before = i == 0 ? 0 : 2 * rounds - 1;
    detector.OnUnlock(1);
  }
  EXPECT_TRUE(before > 30);
  for (int i = 0; i < 20; ++i) detector.OnUnlock(0);
  EXPECT_EQ(detector.needed(), uint64_t{1024});
  detector.OnUnlock(3000);
  EXPECT_EQ(detector.needed(), LockDetector::kRounds);
}

}  // namespace
}  // namespace tfring::testing::lock_detector_test
