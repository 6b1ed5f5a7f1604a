// Who comes and goes without a failure, and when a job gives up.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/membership/coordinator.h"
#include "tests/cc/membership/small_job.h"
#include "tests/cc/test.h"

namespace tfring::membership::coordinator_changes_test {
namespace {

using Workers = std::vector<WorkerId>;

TEST(Rank0IsToldOfAChangeUntilItHasPassedItOn) {
  SmallJob job = RunningJob(JobOf(2, 3), 2);
  job.Join(3, "a");
  job.Pass(3 * kSecond, true);
  const int said = job.Said(CommandKind::kChangePending, 1);
  EXPECT_TRUE(said > 2);
  job.workers.at(1).report.announced = true;
  job.Pass(3 * kSecond, true);
  EXPECT_TRUE(job.Said(CommandKind::kChangePending, 1) <= said + 1);
}

TEST(AMemberThatMissesTheCommitIsStopped) {
  SmallJob job = RunningJob(JobOf(2, 3), 2);
  job.Join(3, "a");
  job.Pass(3 * kSecond, true);
  job.Stop(1, true);
  job.Pass(4900 * kMillisecond);
  EXPECT_EQ(job.Said(CommandKind::kEnd, 2), 0);
  job.Pass(200 * kMillisecond);
  EXPECT_EQ(job.Said(CommandKind::kEnd, 2), 1);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_EQ(job.Members().size(), 3u);
}

TEST(ASlotIsFreeWhenItsProcessIsKnownToBeOver) {
  CoordinatorOptions options = JobOf(1);
  SmallJob job(options);
  job.SetHosts({{"a", 1}});
  ASSERT_EQ(job.starts.size(), 1u);
  // It is never ready, and no agent says that it has ended.
  job.Pass(121 * kSecond);
  EXPECT_TRUE(job.kills == Workers{1});
  job.Pass(29 * kSecond);
  EXPECT_EQ(job.starts.size(), 1u);
  job.Pass(2 * kSecond);
  ASSERT_EQ(job.starts.size(), 2u);
  EXPECT_TRUE(job.starts[1].worker != job.starts[0].worker);
  job.workers[2].report.worker = 2;
  job.End(2, 1);
  job.Pass(200 * kMillisecond);
  EXPECT_EQ(job.starts.size(), 3u);
}

TEST(AtTheLimitOfResetsJoinersWaitAndAFailureEndsTheJob) {
  CoordinatorOptions options = JobOf(4, 5);
  options.reset_limit = 2;
  SmallJob job = RunningJob(options, 4);
  job.End(1, 137);
  job.End(2, 137);
  EXPECT_TRUE(job.Runs(3));
  job.Join(5, "a");
  job.Pass(10 * kSecond, true);
  EXPECT_EQ(job.Said(CommandKind::kChangePending, 3), 0);
  job.End(3, 137);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_EQ(job.end->code, 1);
  EXPECT_CONTAINS(job.end->reason, "the limit of 2 resets is used up");
  EXPECT_TRUE(job.workers.at(4).exit == 1 && job.workers.at(5).exit == 1);
}

TEST(TheSameErrorAtTheSameCommitEndsTheJobAtLast) {
  SmallJob job = RunningJob(JobOf(6), 6);
  job.End(1, 1, "ValueError: a");
  job.End(2, 1, "ValueError: b");
  job.End(3, 1, "ValueError: b");
  EXPECT_TRUE(!job.end);
  job.Pass(kSecond, true);  // another commit
  job.End(4, 1, "ValueError: b");
  EXPECT_TRUE(!job.end);
  job.End(5, 1, "ValueError: b");
  EXPECT_TRUE(!job.end);
  job.End(6, 1, "ValueError: b");
  ASSERT_TRUE(job.end.has_value());
  EXPECT_EQ(job.end->code, 1);
  EXPECT_CONTAINS(job.end->reason, "ValueError: b");
}

TEST(AProgramThatDoesNotCallInitEndsTheJobAtLast) {
  SmallJob job(JobOf(2));
  job.SetHosts({{"a", 2}});
  const auto end_well = [&job](WorkerId id) {
    job.workers[id].report.worker = id;
    job.End(id, 0);
  };
  end_well(1);
  end_well(2);
  EXPECT_TRUE(!job.end);
  job.Pass(200 * kMillisecond);
  EXPECT_EQ(job.starts.size(), 4u);
  end_well(3);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_EQ(job.end->code, 1);
  EXPECT_CONTAINS(job.end->reason,
                  "worker 3 (host a, slot 0) ended with exit code 0, and so did 2");
  EXPECT_CONTAINS(job.end->reason, "none has called init");
}

TEST(ErrorsAreTheSameIfTheyDifferInNumbersOnly) {
  SmallJob job = RunningJob(JobOf(5), 5);
  job.End(1, 1, "ValueError: rank 12, step 7: <object at 0x7f3a>");
  job.End(2, 1, "ValueError: rank 3, step 107: <object at 0x55d09b>");
  job.End(3, 1, "ValueError: rank 0, loss 7: <object at 0x55d09b>");
  job.End(4, 1, "ValueError: rank 3, step 107: <object at 0x55d09b>");
  EXPECT_TRUE(!job.end);
  job.Join(6, "a");
  job.End(5, 1, "ValueError: rank 1, step 8: <object at 0x1>");
  EXPECT_TRUE(!job.end);
  job.End(6, 1, "ValueError: rank 0, step 999: <object at 0x2b>");
  ASSERT_TRUE(job.end.has_value());
  EXPECT_CONTAINS(job.end->reason, "3 times at commit 10 (step 10)");
  EXPECT_CONTAINS(job.end->reason, "ValueError: rank 0, step 999: <object at 0x2b>");
}

TEST(AnErrorOfSeveralMembersOfAGenerationCountsOnce) {
  SmallJob job = RunningJob(JobOf(8), 8);
  for (WorkerId id : {1, 2, 3, 4}) job.workers.at(id).deaf = true;  // they end before they stop
  for (WorkerId id : {1, 2, 3, 4}) job.End(id, 1, "OSError: [Errno 28] no space left");
  EXPECT_TRUE(!job.end);
  EXPECT_TRUE(job.Runs(2));
  job.End(5, 1, "OSError: [Errno 28] no space left");
  EXPECT_TRUE(!job.end);
  job.End(6, 1, "OSError: [Errno 28] no space left");
  EXPECT_TRUE(job.end.has_value());
}

TEST(ItIsSaidIfNoWorkerIsLeftThatHasTheNewestCommit) {
  CoordinatorOptions options = JobOf(2);
  options.min_np = 1;
  SmallJob job = RunningJob(options, 2);
  job.End(1, 137);
  job.End(2, 137);
  job.Join(3, "a");
  EXPECT_TRUE(job.Runs(3));
  EXPECT_TRUE(
      job.Noted("no worker is left that has commit 10 (step 10): the training goes on from "
                "commit 0 (step 0), or from a newer copy"));
}

TEST(ItIsSaidIfAllAreLostBeforeTheyHaveToldOfTheirCommits) {
  CoordinatorOptions options = JobOf(2);
  options.min_np = 1;
  SmallJob job(options);
  for (WorkerId id : {1, 2}) job.Join(id, "a");
  EXPECT_TRUE(job.Runs(1));
  for (WorkerId id : {1, 2}) job.workers.at(id).deaf = true;  // their agent was killed
  for (WorkerId id : {1, 2}) job.End(id, 255);
  job.Join(3, "a");
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(
      job.Noted("no worker of generation 1 is left: the training goes on from commit 0 (step 0); "
                "later commits are lost"));
}

TEST(BelowItsLeastAJobWaitsAndThenEnds) {
  CoordinatorOptions options = JobOf(3);
  options.min_np = 2;
  options.min_wait = 100 * kSecond;
  SmallJob job = RunningJob(options, 3);
  job.End(1, 137);
  EXPECT_TRUE(job.Runs(2));
  job.End(2, 137);
  EXPECT_EQ(job.generation(), Generation{2});
  job.Pass(90 * kSecond);
  job.Join(4, "b");
  EXPECT_TRUE(job.Runs(3));
  job.End(3, 137);
  job.Pass(99 * kSecond);
  EXPECT_TRUE(!job.end);
  job.Pass(2 * kSecond);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_CONTAINS(job.end->reason, "fewer than 2 workers for 100 s");
}

TEST(ThatAJobWaitsIsSaidWhenNobodyIsOnItsWay) {
  const std::string none = "the job waits: it has 0 of 2 workers";
  CoordinatorOptions options = JobOf(2);
  options.min_np = 2;
  SmallJob job(options);
  job.SetHosts({{"a", 2}});
  ASSERT_EQ(job.starts.size(), size_t{2});
  job.Pass(29 * kSecond);
  EXPECT_TRUE(!job.Noted(none));
  job.Pass(2 * kSecond);
  EXPECT_TRUE(job.Noted(none));
  job.Join(1, "a");
  job.Join(2, "a");
  job.Pass(kSecond, true);
  ASSERT_TRUE(job.Runs(1));
  const std::string one = "the job waits: it has 1 of 2 workers";
  job.SetHosts({{"a", 1}});
  job.Stop(1, true);
  job.Stop(2, true);
  job.Pass(2 * kSecond);
  EXPECT_TRUE(!job.Noted(one));
  job.Pass(2 * kSecond);
  EXPECT_TRUE(job.Noted(one));
  EXPECT_EQ(std::count(job.notes.begin(), job.notes.end(), one), 1);
}

}  // namespace
}  // namespace tfring::membership::coordinator_changes_test
