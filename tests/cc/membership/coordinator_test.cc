// How generations follow each other.

#include "ops/runtime/membership/coordinator.h"

#include <set>
#include <vector>

#include "tests/cc/membership/small_job.h"
#include "tests/cc/test.h"

namespace tfring::membership::coordinator_test {
namespace {

using Workers = std::vector<WorkerId>;

TEST(TheFirstGenerationWaitsForAllThatWereAskedFor) {
  SmallJob job(JobOf(3));
  job.Join(1, "a");
  job.Join(2, "a");
  job.Pass(59 * kSecond);
  EXPECT_EQ(job.generation(), Generation{0});
  job.Join(3, "b");
  EXPECT_TRUE(job.Runs(1));
  EXPECT_TRUE(job.Members() == (Workers{1, 2, 3}));
}

TEST(RanksOfAHostAreSideBySideAndSurvivorsKeepTheirOrder) {
  SmallJob job(JobOf(4, 6));
  job.Join(1, "a");
  job.Join(2, "b");
  job.Join(3, "a");
  job.Join(4, "b");
  EXPECT_TRUE(job.Members() == (Workers{1, 3, 2, 4}));
  job.Join(5, "c");
  job.Join(6, "a");
  job.End(1, 1);
  // Worker 6 is last within its host, worker 5 on a new one.
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{3, 6, 2, 4, 5}));
}

TEST(TheRootIsTheFirstOfThoseThatAreAhead) {
  SmallJob job = RunningJob(JobOf(4), 4);
  for (WorkerId id : {2, 3, 4}) job.workers.at(id).deaf = true;
  job.workers.at(3).report.position = job.workers.at(4).report.position = {20, 20};
  job.End(1, 137);
  job.Stop(4);
  job.Stop(3);
  EXPECT_EQ(job.generation(), Generation{1});  // worker 2 has not stopped
  job.Stop(2);
  EXPECT_EQ(job.generation(), Generation{2});
  EXPECT_EQ(job.coordinator.record().root, 1);
  EXPECT_TRUE(job.coordinator.record().position == (Position{20, 20}));
}

TEST(AnAnswerSaysWhichGenerationTrainsAndReturnsTheTimeOfTheReport) {
  SmallJob job = RunningJob(JobOf(2), 2);
  job.said.clear();
  job.Say(1);
  ASSERT_EQ(job.said.size(), 1u);
  EXPECT_EQ(job.said[0].second.generation, Generation{1});
  EXPECT_EQ(job.said[0].second.sent_at, job.now);
  EXPECT_EQ(job.said[0].second.sequence, job.workers.at(1).report.sequence);
  job.workers.at(1).deaf = true;
  job.End(2, 137);
  job.said.clear();
  job.Say(1);
  EXPECT_EQ(job.said[0].second.generation, Generation{0});  // no lease for one that ends
}

TEST(OfTwoThatCannotReachEachOtherTheYoungerGoes) {
  SmallJob job = RunningJob(JobOf(3), 3);
  for (Generation generation = 1; generation < 3; ++generation) {
    EXPECT_TRUE(job.Runs(generation));
    job.Stop(1, false, false, 2);
  }
  EXPECT_TRUE(job.Runs(3));
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));
  EXPECT_EQ(job.workers.at(2).excluded, 1);
  // Another one on its host could not reach it either.
  job.SetHosts({{"a", 3}});
  job.End(2, 75);
  job.Pass(9 * kSecond, true);
  EXPECT_TRUE(job.starts.empty());
  job.Pass(2 * kSecond, true);
  EXPECT_EQ(job.starts.size(), size_t{1});
}

TEST(WaitingBetweenTwoGenerationsForgivesNoAccusation) {
  CoordinatorOptions options = JobOf(3);
  options.min_np = 3;
  SmallJob job = RunningJob(options, 3);
  job.End(3, 137);
  for (WorkerId id : {1, 2}) job.workers.at(id).report.suspect = kNobody;
  job.Pass(kSecond);
  job.Join(4, "a");
  EXPECT_TRUE(job.Runs(2));
  job.workers.at(4).deaf = true;
  job.Stop(1, false, false, 2);
  job.End(4, 137);
  job.Pass(kSecond);
  job.Join(5, "a");
  EXPECT_TRUE(job.Runs(3));
  job.Stop(1, false, false, 2);
  EXPECT_EQ(job.workers.at(2).excluded, 1);
}

TEST(WhatIsSaidWhileTheJobWaitsIsOfTheGenerationThatHasEnded) {
  for (const WorkerId suspect : {1, 2}) {
    CoordinatorOptions options = JobOf(3);
    options.min_np = 3;
    SmallJob job = RunningJob(options, 3);
    job.workers.at(3).deaf = true;
    job.Stop(1, false, false, suspect);
    job.End(3, 137);
    job.Pass(kSecond);  // worker 1 says the same with each sign of life
    job.Join(4, "a");
    EXPECT_TRUE(job.Runs(2));
    job.workers.at(4).deaf = true;
    if (suspect == 1) job.Stop(1, false, false, 2);
    job.End(4, 137);
    job.Pass(kSecond);
    job.Join(5, "a");
    EXPECT_TRUE(job.Runs(3));
    EXPECT_TRUE(job.Members() == (Workers{1, 2, 5}));
    // A wish of the first generation explains nothing in the second.
    if (suspect == 1) job.Stop(1, false, false, 2);
    EXPECT_EQ(job.workers.at(2).excluded, suspect == 1 ? 1 : 0);
  }
}

TEST(AWorkerOfAnotherJobIsExcluded) {
  SmallJob job = RunningJob(JobOf(2), 2);
  job.workers[9].report.worker = 9;
  job.workers[9].report.state = WorkerState::kRunning;
  job.workers[9].report.generation = 7;
  job.Say(9);
  EXPECT_EQ(job.workers.at(9).excluded, 1);
  EXPECT_TRUE(job.Runs(1));
}

}  // namespace
}  // namespace tfring::membership::coordinator_test
