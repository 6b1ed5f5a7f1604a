// Who has to leave with a state that nobody else has.

#include <vector>

#include "ops/runtime/membership/coordinator.h"
#include "tests/cc/membership/small_job.h"
#include "tests/cc/test.h"

namespace tfring::membership::coordinator_leavers_test {
namespace {

using Workers = std::vector<WorkerId>;

// Workers 1 to `np` on host a, which have made 10 commits; then there is host b only. They stop.
SmallJob ReplacedJob(const CoordinatorOptions& options) {
  SmallJob job(options);
  job.SetHosts({{"a", options.np}});
  for (const auto& start : std::vector(job.starts)) job.Join(start.worker, "a");
  job.Pass(kSecond, true);
  job.SetHosts({{"b", options.np}});
  for (WorkerId id : job.Members()) job.Stop(id, true);
  job.Pass(kSecond);
  return job;
}

TEST(WhereAllHostsAreReplacedOneStaysUntilAnotherHasItsState) {
  SmallJob job = ReplacedJob(JobOf(2));
  EXPECT_TRUE(job.workers.at(2).exit == kExitTryAgain);
  EXPECT_TRUE(!job.workers.at(1).exit);
  EXPECT_EQ(job.generation(), Generation{1});
  ASSERT_EQ(job.starts.size(), 4u);
  job.Join(3, "b");
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));
  EXPECT_EQ(job.coordinator.record().root, 0);
  EXPECT_TRUE(job.coordinator.record().position == (Position{10, 10}));
  job.Join(4, "b");
  job.said.clear();
  job.Pass(kSecond, true);
  EXPECT_TRUE(job.Said(CommandKind::kChangePending, 1) > 0);
  job.Stop(1, true);
  job.Stop(3, true);
  EXPECT_TRUE(job.workers.at(1).exit == kExitTryAgain);
  EXPECT_TRUE(job.Runs(3));
  EXPECT_TRUE(job.Members() == (Workers{3, 4}));
  EXPECT_TRUE(job.coordinator.record().position == (Position{20, 20}));
}

// An order replaces the one before it in the store, so one that comes too soon would take GO along.
TEST(TheFirstRankIsToldOfAChangeWhenItTrains) {
  SmallJob job = ReplacedJob(JobOf(2));
  job.said.clear();
  job.Join(3, "b");
  ASSERT_TRUE(job.Runs(2));
  EXPECT_EQ(job.Said(CommandKind::kGo, 1), 1);
  EXPECT_EQ(job.Said(CommandKind::kChangePending, 1), 0);
  job.Say(3);
  EXPECT_EQ(job.Said(CommandKind::kChangePending, 1), 0);
  job.Say(1);
  EXPECT_EQ(job.Said(CommandKind::kChangePending, 1), 1);
}

// Workers 1 on host a and 2 on host b. A failure ends their generation, and 2 is a commit ahead.
// Host b is gone meanwhile.
SmallJob JobWhoseLeaverIsAhead(CoordinatorOptions options) {
  options.min_np = options.max_np;
  SmallJob job(options);
  job.SetHosts({{"a", 1}, {"b", 1}});
  job.Join(1, "a");
  job.Join(2, "b");
  job.Pass(kSecond, true);
  job.SetHosts({{"a", 1}});
  job.workers.at(2).report.position = {11, 11};
  job.Stop(1);
  return job;
}

TEST(ItGivesItsStateToThoseThatStayThoughTheyAreFewerThanMinNp) {
  SmallJob job = JobWhoseLeaverIsAhead(JobOf(2));
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{1, 2}));
  EXPECT_TRUE(job.coordinator.record().position == (Position{11, 11}));
  job.Pass(kSecond, true);
  job.Stop(1, true);
  job.Stop(2, true);
  EXPECT_TRUE(job.workers.at(2).exit == kExitTryAgain);
  EXPECT_EQ(job.generation(), Generation{2});
  job.Pass(4 * kSecond);
  EXPECT_TRUE(job.Noted("the job waits: it has 1 of 2 workers"));
  job.SetHosts({{"a", 1}, {"c", 1}});
  job.Pass(kSecond);
  job.Join(3, "c");
  EXPECT_TRUE(job.Runs(3));
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));
  EXPECT_TRUE(job.coordinator.record().position == (Position{21, 21}));
}

TEST(IfNobodyComesTheJobEndsAsBelowItsLeast) {
  CoordinatorOptions options = JobOf(2);
  options.min_wait = 100 * kSecond;
  SmallJob job = ReplacedJob(options);
  job.Pass(98 * kSecond);
  EXPECT_TRUE(!job.end && !job.workers.at(1).exit);
  job.Pass(2 * kSecond);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_CONTAINS(job.end->reason, "fewer than 1 workers for 100 s");
  EXPECT_TRUE(job.workers.at(1).exit == 1);
}

TEST(WhereAllHostsAreBarredTheJobEnds) {
  CoordinatorOptions options = JobOf(2);
  options.hosts.first_failure_bars = true;
  SmallJob job(options);
  job.SetHosts({{"a", 2}});
  for (WorkerId id : {1, 2}) job.Join(id, "a");
  job.Pass(kSecond, true);
  job.End(2, 1);
  job.Pass(kSecond);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_CONTAINS(job.end->reason, "each is barred");
  EXPECT_TRUE(job.workers.at(1).exit == 1);
}

TEST(HandingTheStateOverIsOneChange) {
  CoordinatorOptions options = JobOf(2);
  options.reset_limit = 1;
  SmallJob job = ReplacedJob(options);
  job.Join(3, "b");
  EXPECT_TRUE(job.Runs(2));
  job.Join(4, "b");
  job.Stop(1, true);
  job.Stop(3, true);
  EXPECT_TRUE(!job.end);
  EXPECT_TRUE(job.Runs(3));
  job.Stop(3);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_CONTAINS(job.end->reason, "the limit of 1 resets is used up");
}

TEST(WhoCannotReachEachOtherIsJudgedBeforeAnybodyLeaves) {
  SmallJob job = RunningJob(JobOf(3), 3);
  const auto accuse = [&] {
    for (WorkerId id : {1, 2, 3}) job.workers.at(id).deaf = true;
    job.Stop(1, false, false, 2);
    job.Stop(2, false, false, 1);
    for (WorkerId id : {1, 2, 3}) job.workers.at(id).deaf = false;
    job.Stop(3);
  };
  accuse();
  ASSERT_TRUE(job.Runs(2));
  const Position ahead = {11, 11};
  for (WorkerId id : {2, 3}) job.workers.at(id).report.position = ahead;
  job.workers.at(3).report.leaving = true;
  accuse();
  EXPECT_EQ(job.workers.at(2).excluded, 1);
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));  // and not 1 alone, which is behind
  EXPECT_TRUE(job.coordinator.record().position == ahead);
}

TEST(AJobWhoseMembersAreThroughHasEndedWellThoughItsHostIsBarred) {
  CoordinatorOptions options = JobOf(2);
  options.min_np = 1;
  options.hosts.first_failure_bars = options.hosts.cooling_empties = true;
  SmallJob job(options);
  job.SetHosts({{"a", 2}});
  for (const auto& start : std::vector(job.starts)) job.Join(start.worker, "a");
  job.Pass(kSecond, true);
  job.Stop(1, false, true);
  job.now += kSecond / 2;  // limits are looked at
  job.End(2, 1);
  ASSERT_TRUE(job.end.has_value());
  EXPECT_EQ(job.end->code, 0);
}

}  // namespace
}  // namespace tfring::membership::coordinator_leavers_test
