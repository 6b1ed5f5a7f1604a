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

}  // namespace
}  // namespace tfring::membership::coordinator_silence_test
