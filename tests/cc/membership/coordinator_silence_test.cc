// Who is taken for dead.

#include <vector>

#include "ops/runtime/membership/coordinator.h"
#include "tests/cc/membership/small_job.h"
#include "tests/cc/test.h"

namespace tfring::membership::coordinator_silence_test {
namespace {

using Workers = std::vector<WorkerId>;

TEST(AMemberThatIsSilentInAGenerationThatAdvancesStays) {
  SmallJob job = RunningJob(JobOf(3), 3);
  job.workers.at(2).silent = true;
  job.Pass(60 * kSecond, true);
  EXPECT_TRUE(job.Runs(1));
  // It advances no more.
  job.Pass(5 * kSecond);
  EXPECT_TRUE(job.Runs(1));
  job.Pass(200 * kMillisecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));
  EXPECT_TRUE(job.kills == Workers{2});
  EXPECT_EQ(job.workers.at(2).excluded, 1);
  // It wakes up.
  job.Say(2);
  EXPECT_EQ(job.workers.at(2).excluded, 2);
  EXPECT_TRUE(job.Runs(2));
}

TEST(WhoseEndWouldBeReportedMayBeSilentForLong) {
  SmallJob job = RunningJob(JobOf(3), 3, true);
  for (const bool all : {false, true}) {
    for (auto& [id, worker] : job.workers) worker.silent = all || id == 2;
    job.Pass(119 * kSecond);
    EXPECT_TRUE(job.Runs(1));
    for (auto& [id, worker] : job.workers) worker.silent = false;
    job.Pass(kSecond);
  }
  job.workers.at(2).silent = true;
  job.Pass(200 * kSecond, true);  // a generation that advances
  EXPECT_TRUE(job.Runs(1));
  job.Pass(121 * kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.kills == Workers{2});
}

TEST(WhoIsSilentAndLostByAMemberIsTakenForDeadWithItsHost) {
  for (const bool lost : {false, true}) {
    SmallJob job = RunningJob(JobOf(4), 4, true);
    job.SetHosts({{"a", 4}, {"b", 1}});
    for (WorkerId id : {2, 3}) job.workers.at(id).silent = job.workers.at(id).deaf = true;
    job.Pass(6 * kSecond);
    job.Stop(1, false, false, lost ? 2 : 1);
    job.Pass(200 * kMillisecond);
    EXPECT_TRUE(job.Runs(2) == lost);
    EXPECT_TRUE(job.kills == (lost ? Workers{2, 3} : Workers{}));
  }
}

TEST(WhoIsCutOffAndLostByAMemberIsTakenForDeadAtOnceAndMayPublishNoMore) {
  for (const bool lost : {false, true}) {
    SmallJob job = RunningJob(JobOf(4), 4, true);
    for (WorkerId id : {2, 3}) job.CutOff(id);
    job.Pass(200 * kMillisecond);
    EXPECT_TRUE(job.Runs(1));
    job.Stop(1, false, false, lost ? 2 : 1);
    job.Pass(200 * kMillisecond);
    EXPECT_TRUE(job.Runs(2) == lost);
    EXPECT_TRUE(job.kills == (lost ? Workers{2, 3} : Workers{}));
    if (!lost) continue;
    EXPECT_TRUE(job.Members() == (Workers{1, 4}));
    job.said.clear();
    job.Pass(4 * kSecond);  // what the first generation was allowed
    EXPECT_EQ(job.LastAnswer(1), Generation{0});
    job.Pass(kSecond);
    EXPECT_EQ(job.LastAnswer(1), Generation{2});
  }
}

TEST(WhoIsCutOffAndIsHeardAgainStays) {
  SmallJob job = RunningJob(JobOf(3), 3, true);
  job.CutOff(2);
  job.Pass(200 * kMillisecond);
  job.workers.at(2).silent = job.workers.at(2).deaf = false;
  job.Say(2);
  job.Stop(1, false, false, 2);
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{1, 2, 3}));
}

TEST(WhoIsSilentOnAHostThatIsGoneIsTakenForDead) {
  SmallJob job = RunningJob(JobOf(2), 2, true);
  job.workers.at(2).silent = true;
  job.Pass(6 * kSecond);
  EXPECT_TRUE(job.kills.empty());
  job.SetHosts({{"b", 2}});
  job.Pass(200 * kMillisecond);
  EXPECT_TRUE(job.kills == Workers{2});
}

TEST(WhoIsSilentIsInTheNextGenerationIfItStopsInTime) {
  for (const Duration silence : {9 * kSecond, 11 * kSecond}) {
    SmallJob job = RunningJob(JobOf(3), 3, true);
    job.workers.at(3).silent = job.workers.at(3).deaf = true;
    job.Pass(20 * kSecond);
    job.End(1, 137);
    job.Pass(silence);
    job.workers.at(3).silent = job.workers.at(3).deaf = false;
    job.Pass(kSecond);
    EXPECT_TRUE(job.Runs(2));
    EXPECT_TRUE(job.Members() == (silence < 10 * kSecond ? Workers{2, 3} : Workers{2}));
  }
}

TEST(NobodyStopsForAJoinerThatIsSilent) {
  CoordinatorOptions options = JobOf(2, 3);
  options.join_interval = 8 * kSecond;
  SmallJob job = RunningJob(options, 2, true);
  job.SetHosts({{"a", 3}});
  job.Pass(kSecond, true);
  job.Join(3, "a");
  job.workers.at(3).silent = true;
  job.Pass(10 * kSecond);
  EXPECT_EQ(job.Said(CommandKind::kChangePending, 1), 0);
  job.workers.at(3).silent = false;
  job.Pass(kSecond);
  EXPECT_TRUE(job.Said(CommandKind::kChangePending, 1) > 0);
}

TEST(WhoHasStoppedAndIsSilentIsWaitedForAndThenTakenForDead) {
  SmallJob job = RunningJob(JobOf(3), 3, true);
  job.workers.at(2).deaf = true;
  job.End(1, 137);
  job.workers.at(3).silent = true;
  job.Pass(6 * kSecond);
  job.workers.at(2).deaf = false;
  job.Stop(2);
  EXPECT_EQ(job.generation(), Generation{1});
  job.Pass(5 * kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == Workers{2});
}

TEST(IfNobodyIsHeardBetweenGenerationsTheyAreWaitedForAsLongAsTheyWait) {
  for (const Duration silence : {9 * kSecond, 11 * kSecond}) {
    SmallJob job = RunningJob(JobOf(3), 3, true);
    for (WorkerId id : {2, 3}) job.workers.at(id).silent = job.workers.at(id).deaf = true;
    job.End(1, 137);
    job.Pass(silence);
    for (WorkerId id : {2, 3}) job.Stop(id);
    EXPECT_EQ(job.generation() == 2, silence < 10 * kSecond);
    EXPECT_EQ(job.kills.empty(), silence < 10 * kSecond);
  }
}

TEST(TimeInWhichTheCoordinatorItselfWasStoppedIsNobodysSilence) {
  SmallJob job = RunningJob(JobOf(2), 2);
  job.Pass(10 * kSecond);
  for (auto& [id, worker] : job.workers) worker.silent = true;
  job.now += 3600 * kSecond;
  job.Pass(4 * kSecond);
  for (auto& [id, worker] : job.workers) worker.silent = false;
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(1));
  EXPECT_TRUE(job.kills.empty());
}

TEST(WhatCameWhileTheCoordinatorWasStoppedIsReadBeforeSilenceIsJudged) {
  SmallJob job = RunningJob(JobOf(2), 2);
  job.workers.at(2).silent = true;
  job.Pass(5 * kSecond);
  job.now += 3600 * kSecond;
  job.workers.at(2).silent = false;
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(1));
  EXPECT_TRUE(job.kills.empty());
}

TEST(TimeInWhichTheCoordinatorWasStoppedIsNobodysDelay) {
  constexpr Duration kHour = 3600 * kSecond;
  SmallJob job(JobOf(3));
  job.workers[3].deaf = true;
  for (WorkerId id : {1, 2, 3}) job.Join(id, "a");
  job.now += kHour;  // while worker 3 connects
  job.Pass(kSecond);
  job.workers.at(3).deaf = false;
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(1));
  job.workers.at(2).silent = true;  // but trains
  job.Pass(10 * kSecond, true);
  job.now += kHour;
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(1));
  job.workers.at(2).silent = false;
  job.workers.at(2).deaf = true;
  job.End(1, 137);
  job.now += kHour;  // while worker 2 stops
  job.Pass(kSecond);
  job.workers.at(2).deaf = false;
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{2, 3}));
  EXPECT_TRUE(job.kills.empty());
}

// It was stopped for longer than it waits for workers, while it waited.
TEST(TimeInWhichTheCoordinatorWasStoppedIsNoLackOfWorkers) {
  CoordinatorOptions options = JobOf(2);
  options.min_np = 2;
  SmallJob job = RunningJob(options, 2, true);
  job.End(2, 137);
  job.Pass(10 * kSecond);
  for (int i = 0; i < 2; ++i) {
    job.now += options.min_wait + kSecond;
    job.Pass(kSecond);
    EXPECT_TRUE(!job.end);
  }
  job.Join(3, "b");
  EXPECT_TRUE(job.Runs(2));
}

TEST(TimeInWhichTheCoordinatorWasStoppedIsNotPartOfTheFirstWait) {
  CoordinatorOptions options = JobOf(2);
  SmallJob job(options);
  job.Join(1, "a");
  job.Pass(kSecond);
  job.now += options.start_wait + kSecond;
  job.Pass(kSecond);
  EXPECT_EQ(job.generation(), Generation{0});  // with one worker only
  job.Join(2, "a");
  EXPECT_EQ(job.coordinator.record().members.size(), size_t{2});
}

TEST(TimeInWhichTheCoordinatorWasStoppedFreesNoSlot) {
  SmallJob job = RunningJob(JobOf(2), 2, true);
  job.workers.at(2).silent = job.workers.at(2).deaf = true;
  job.Stop(1, false, false, 2);  // worker 2 is taken for dead, and its agent says nothing
  job.Pass(20 * kSecond);
  ASSERT_TRUE(job.kills == Workers{2});
  const size_t starts = job.starts.size();
  job.now += 60 * kSecond;
  job.Pass(2 * kSecond);
  EXPECT_EQ(job.starts.size(), starts);
  job.Pass(30 * kSecond);
  EXPECT_EQ(job.starts.size(), starts + 1);
}

TEST(WhoDoesNotStopIsExcluded) {
  SmallJob job = RunningJob(JobOf(3), 3);
  job.workers.at(3).deaf = true;
  job.End(1, 137);
  job.Pass(10 * kSecond);
  EXPECT_EQ(job.workers.at(3).report.state == WorkerState::kRunning, true);
  EXPECT_EQ(job.generation(), Generation{1});
  job.workers.at(3).deaf = false;
  job.workers.at(3).report.generation = 0;  // an order to end another generation
  job.Pass(200 * kMillisecond);
  EXPECT_EQ(job.workers.at(3).excluded, 1);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == Workers{2});
}

TEST(WhoDoesNotConnectIsExcluded) {
  SmallJob job(JobOf(2));
  job.Join(1, "a");
  job.workers[2].deaf = true;
  job.Join(2, "a");
  EXPECT_EQ(job.generation(), Generation{1});
  job.Pass(31 * kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == Workers{1});
  EXPECT_TRUE(job.kills == Workers{2});
}

TEST(ASpareThatWasTakenForDeadDoesNotComeBack) {
  SmallJob job = RunningJob(JobOf(2), 3);
  job.workers.at(3).silent = true;
  job.Pass(6 * kSecond, true);
  EXPECT_EQ(job.workers.at(3).excluded, 1);
  job.Say(3);
  EXPECT_EQ(job.workers.at(3).excluded, 2);
  job.End(1, 137);
  EXPECT_TRUE(job.Members() == Workers{2});
}

}  // namespace
}  // namespace tfring::membership::coordinator_silence_test
