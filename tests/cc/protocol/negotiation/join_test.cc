#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// Ranks that have joined: who takes part then, what cannot go on, and how a set is whole again.
namespace tfring::testing::join_test {
namespace {

void ExpectNothingLeft(Cluster* cluster, int size) {
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
  for (Rank rank = 0; rank < size; ++rank)
    EXPECT_EQ(cluster->at(rank).participant().waiting(), size_t{0});
}

void ExpectEnds(Request request, const std::string& part) {
  for (const bool join_first : {true, false}) {
    Cluster cluster(3, Config());
    if (join_first) cluster.Submit(1, Join());
    cluster.Run();
    cluster.Submit(0, request);
    cluster.Run();
    EXPECT_EQ(cluster.log(0).size(), size_t{join_first});
    if (!join_first) cluster.Submit(1, Join());
    cluster.Run();
    EXPECT_TRUE(cluster.Only(0).error.code() == StatusCode::kFailedPrecondition);
    EXPECT_CONTAINS(cluster.Only(0).error.message(), "'x'");
    EXPECT_CONTAINS(cluster.Only(0).error.message(), "rank 1 has joined");
    EXPECT_CONTAINS(cluster.Only(0).error.message(), part);
    cluster.Submit(2, request);
    cluster.Run();
    EXPECT_TRUE(cluster.Only(2).error.code() == StatusCode::kFailedPrecondition);
    EXPECT_EQ(cluster.fatal.ToString(), "Ok");
    EXPECT_EQ(cluster.at(2).participant().waiting(), size_t{0});
  }
}

TEST(WhatNeedsTheJoinedRankEndsAtOnce) {
  ExpectEnds(Of(CollectiveKind::kReducescatter, {4}), "needs all its ranks");
  ExpectEnds(Of(CollectiveKind::kAlltoall, {3}), "needs all its ranks");
  ExpectEnds(Of(CollectiveKind::kScatter, {3}), "needs all its ranks");
  Request request = Of(CollectiveKind::kBroadcast, {4});
  request.root = 1;
  ExpectEnds(request, "rank 1 is its root");
  request.kind = CollectiveKind::kReduce;
  ExpectEnds(request, "rank 1 is its root");
  request.kind = CollectiveKind::kGather;
  ExpectEnds(request, "rank 1 is its root");
}

TEST(ASendNeedsItsOtherEndOnly) {
  Cluster cluster(3, Config());
  cluster.Submit(2, Join());
  cluster.Run();
  for (Rank rank : {0, 1}) cluster.Submit(rank, Send(0, 1));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).error.ToString(), "Ok");
  EXPECT_EQ(cluster.Only(1).members, (std::vector<Rank>{0, 1}));
  cluster.ClearLogs();
  cluster.Submit(0, Send(0, 2));
  cluster.Run();
  EXPECT_CONTAINS(cluster.Only(0).error.message(), "rank 2 has joined");
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

TEST(WhoHasJoinedAsksForNothingElse) {
  Cluster cluster(2, Config());
  cluster.Submit(1, Join());
  cluster.Submit(1, Allreduce("x"));
  cluster.Submit(1, Join(0, "again"));
  cluster.Run();
  ASSERT_EQ(cluster.log(1).size(), size_t{2});
  for (const TakenPlan& plan : cluster.log(1)) {
    EXPECT_TRUE(plan.error.code() == StatusCode::kFailedPrecondition);
    EXPECT_CONTAINS(plan.error.message(), "rank 1 has joined");
  }
  cluster.ClearLogs();
  cluster.Submit(0, Join(0, "other"));
  cluster.Run();
  EXPECT_CONTAINS(cluster.Only(0).error.message(), "all ranks have to use one name");
  cluster.Submit(0, Join());
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items[0].negotiated_values, std::vector<int64_t>{0});
  ExpectNothingLeft(&cluster, 2);
}

TEST(ADepartureEndsJoinsAndTheRanksTakePartAgain) {
  ProcessSets sets(3);
  EXPECT_TRUE(sets.Add(1, {0, 1}).ok());
  Cluster cluster(3, Config(), sets, 1);
  cluster.Submit(1, Join());
  cluster.Run();
  cluster.at(0).OnDeparted(2, "", 0);
  cluster.Run();
  EXPECT_TRUE(cluster.Only(1).error.code() == StatusCode::kCancelled);
  cluster.ClearLogs();
  cluster.Submit(0, Allreduce("x", {4}, 1));
  cluster.Run();
  EXPECT_TRUE(cluster.log(0).empty());
  cluster.Submit(1, Allreduce("x", {4}, 1));
  cluster.Run();
  EXPECT_EQ(cluster.Only(0).members, (std::vector<Rank>{0, 1}));
  ExpectNothingLeft(&cluster, 2);
}

TEST(StallReportsSayWhoHasJoinedAndJoinsDoNotStall) {
  Config config;
  config.stall_warning = kSecond;
  Cluster cluster(3, config);
  cluster.Submit(1, Join());
  cluster.Run();
  cluster.at(0).OnTime(10 * kSecond);
  EXPECT_TRUE(cluster.at(0).next_deadline() == kNever);
  cluster.now = 10 * kSecond;
  cluster.Submit(0, Allreduce("x"));
  cluster.Run();
  cluster.at(0).OnTime(12 * kSecond);
  cluster.Flush(0);
  ASSERT_EQ(cluster.warnings.size(), size_t{1});
  EXPECT_CONTAINS(
      cluster.warnings[0],
      "rank 0 waits; rank 2 is missing and waits in no collective; not waited for, as joined: "
      "rank 1.");
}

}  // namespace
}  // namespace tfring::testing::join_test
