#include <string>
#include <vector>

#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// Calls that disagree while a step is under way on some rank: the step fails with them, so the
// attempt is over for all ranks, with one error each.
namespace tfring::testing::disagreement_test {
namespace {

Request InRun(Request request) {
  request.in_run = true;
  return request;
}

// What a rank does whose run fails with an error that it was told: no second failure.
void FailRun(Cluster* cluster, Rank rank, uint64_t attempt) {
  const size_t frames = cluster->frames;
  cluster->at(rank).Withdraw(kGlobalProcessSet, attempt, "its run has failed", 0);
  cluster->Run();
  EXPECT_EQ(cluster->frames, frames);
}

void ExpectWorks(Cluster* cluster, int size, uint64_t attempt) {
  cluster->ClearLogs();
  for (Rank rank = 0; rank < size; ++rank) cluster->Submit(rank, Allreduce("works"), attempt);
  cluster->Run();
  for (Rank rank = 0; rank < size; ++rank) {
    EXPECT_EQ(cluster->Only(rank).error.ToString(), "Ok");
    EXPECT_EQ(cluster->at(rank).participant().waiting(), size_t{0});
  }
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
}

TEST(OtherCallsOfTheAttemptEndWithTheSameCause) {
  const std::string why = "the step of ranks 0-2 failed: FailedPrecondition: ";
  Cluster cluster(3, Config());
  cluster.Submit(1, Allreduce("waits"));
  for (Rank rank : {0, 1, 2}) {
    cluster.Submit(rank, InRun(Allreduce("x", {rank == 1 ? 5 : 4})));
    cluster.Submit(rank, Allreduce("both", {rank == 2 ? 5 : 4}));  // in the same batch
  }
  cluster.Run();
  cluster.Submit(2, Allreduce("later"));
  for (Rank rank : {0, 1, 2}) {
    EXPECT_EQ(cluster.left[rank].size(), size_t{1});
    for (const TakenPlan& plan : cluster.log(rank)) {
      if (plan.items[0].name == "x") {
        EXPECT_TRUE(plan.error.code() == StatusCode::kFailedPrecondition);
        continue;
      }
      EXPECT_TRUE(plan.error.code() == StatusCode::kAborted);
      EXPECT_CONTAINS(plan.error.message(), why);
      EXPECT_CONTAINS(plan.error.message(), "'x'");
    }
  }
  EXPECT_EQ(cluster.log(1).size(), size_t{3});
  cluster.Run();
  ASSERT_EQ(cluster.refused.size(), size_t{1});
  EXPECT_CONTAINS(cluster.refused[0].second.message(), "the step failed: FailedPrecondition: ");
  ExpectWorks(&cluster, 3, 1);
}

// Those that have not made the call get the error in the one that they make next.
TEST(RanksThatDidNotAsk) {
  Cluster cluster(4, Config());
  cluster.Submit(3, Join());
  cluster.Submit(0, InRun(Of(CollectiveKind::kAlltoall, {4})));
  cluster.Run();
  EXPECT_TRUE(cluster.log(0).back().error.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(cluster.Only(3).error.message(), "the step of rank 0 failed: FailedPrec");
  for (Rank rank : {1, 2}) {
    cluster.Submit(rank, Allreduce("y"));
    cluster.Run();
    EXPECT_CONTAINS(cluster.Only(rank).error.message(), "the step of rank 0 failed: FailedPrec");
  }
  for (Rank rank : {0, 1, 2, 3}) EXPECT_EQ(cluster.left[rank].size(), size_t{1});
  ExpectWorks(&cluster, 4, 1);
}

TEST(ASetThatCannotBeAdded) {
  Cluster cluster(3, Config(), OverlappingSets(), 1);
  for (Rank rank : {0, 1, 2}) {
    Request request = AddSet({0, 1});
    request.in_run = rank == 2;
    cluster.Submit(rank, request);
  }
  cluster.Submit(0, Allreduce("waits"));
  cluster.Run();
  for (Rank rank : {0, 1, 2}) EXPECT_EQ(cluster.left[rank].size(), size_t{1});
  EXPECT_EQ(cluster.at(0).participant().waiting(), size_t{0});
  FailRun(&cluster, 2, 0);
  ExpectWorks(&cluster, 3, 1);
}

TEST(ACachedRequestKnowsOfTheRun) {
  for (bool in_run : {false, true}) {
    for (bool then : {false, true}) {
      Cluster cluster(2, Config());
      Request request = Allreduce("x");
      request.in_run = in_run;
      for (int step = 0; step < 3; ++step) {
        for (Rank rank : {0, 1}) cluster.Submit(rank, request);
        cluster.Run();
      }
      EXPECT_EQ(cluster.at(1).participant().cache_hits(), 2);
      cluster.ClearLogs();
      request.in_run = then;
      cluster.Submit(0, Allreduce("x", {9}));
      cluster.Submit(1, request);
      cluster.Run();
      for (Rank rank : {0, 1}) {
        EXPECT_TRUE(cluster.Only(rank).error.code() == StatusCode::kFailedPrecondition);
        EXPECT_EQ(cluster.left[rank].size(), size_t{then ? 1u : 0u});
      }
      ExpectWorks(&cluster, 2, then ? 1 : 0);
    }
  }
}

// A run on one rank and eager calls on the other: the same request is not the same on both.
TEST(ACacheIdNeverSpeaksForARankInARun) {
  Cluster cluster(2, Config());
  for (int step = 0; step < 3; ++step) {
    cluster.Submit(0, InRun(Allreduce("x")));
    cluster.Submit(1, Allreduce("x"));
    cluster.Run();
  }
  cluster.ClearLogs();
  cluster.Submit(0, Allreduce("x", {9}));
  cluster.Submit(1, Allreduce("x"));
  cluster.Run();
  for (Rank rank : {0, 1}) {
    EXPECT_TRUE(cluster.Only(rank).error.code() == StatusCode::kFailedPrecondition);
    EXPECT_TRUE(cluster.left[rank].empty());
  }
  ExpectWorks(&cluster, 2, 0);
}

}  // namespace
}  // namespace tfring::testing::disagreement_test
