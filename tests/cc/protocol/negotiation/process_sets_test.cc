#include "ops/runtime/protocol/negotiation/process_sets.h"

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::process_sets_test {
namespace {

TEST(ProcessSetsCheckAndFind) {
  ProcessSets sets(4);
  EXPECT_TRUE(sets.Add(7, {3, 1}).ok());
  EXPECT_EQ(*sets.Find(7), (std::vector<Rank>{1, 3}));
  EXPECT_TRUE(sets.Contains(7, 1) && sets.Contains(7, 3));
  EXPECT_TRUE(!sets.Contains(7, 2) && !sets.Contains(8, 2));
  EXPECT_EQ(sets.Find(kGlobalProcessSet)->size(), size_t{4});
  EXPECT_TRUE(sets.Find(8) == nullptr);
  EXPECT_CONTAINS(sets.Add(7, {0}).message(), "exists already");
  EXPECT_CONTAINS(sets.Add(8, {0, 4}).message(), "rank 4");
  EXPECT_CONTAINS(sets.Add(8, {2, 2}).message(), "rank 2 twice");
  EXPECT_CONTAINS(sets.Add(8, {}).message(), "no ranks");
  EXPECT_TRUE(sets.Find(8) == nullptr);
  EXPECT_EQ(sets.NextId(), 8);
  EXPECT_EQ(ProcessSets(4).NextId(), 1);
  EXPECT_EQ(ProcessSets(4, 9).NextId(), 10);
  EXPECT_TRUE(ProcessSets(4, 9).Find(9) == nullptr);
}

void OnAll(Cluster* cluster, int size, const Request& request) {
  cluster->ClearLogs();
  for (Rank rank = 0; rank < size; ++rank) cluster->Submit(rank, request);
  cluster->Run();
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
}

TEST(RanksHaveToAgreeOnTheSet) {
  Cluster cluster(2, Config());
  cluster.Submit(0, AddSet({0}));
  cluster.Submit(1, AddSet({1}));
  cluster.Run();
  EXPECT_TRUE(cluster.Only(0).error.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(cluster.Only(0).error.message(), "[0] on rank 0; [1] on rank 1");
  EXPECT_TRUE(cluster.sets(0).Find(1) == nullptr);
}

TEST(ARemovedSetTakesItsCallsAndItsIdsAlong) {
  Cluster cluster(3, Config());
  OnAll(&cluster, 3, AddSet({0, 1}));
  for (int step = 0; step < 2; ++step) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("x", {4}, 1));
    cluster.Run();
  }
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 1);
  cluster.Submit(0, Allreduce("x", {4}, 1));  // rank 1 never asks
  OnAll(&cluster, 3, RemoveSet(1));
  ASSERT_EQ(cluster.log(0).size(), size_t{2});
  EXPECT_TRUE(cluster.log(0)[1].error.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(cluster.log(0)[1].error.message(), "'x' in process set 1: the process set was");
  // A set of the same ranks knows nothing of it.
  OnAll(&cluster, 3, AddSet({0, 1}));
  cluster.ClearLogs();
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("x", {4}, 2));
  cluster.Run();
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 1);
  EXPECT_EQ(cluster.Only(1).items[0].name, "x");
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

// The id was on its way when the set went.
TEST(AnIdThatCrossesTheRemovalEndsItsCall) {
  Cluster cluster(3, Config());
  OnAll(&cluster, 3, AddSet({0, 1}));
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("x", {4}, 1));
  cluster.Run();
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, RemoveSet(1));
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, AddSet({0, 2}));
  cluster.Submit(1, Allreduce("x", {4}, 1));
  Negotiator::Output late = cluster.at(1).Drain();
  ASSERT_EQ(late.frames.size(), size_t{1});
  Frame frame = *DecodeFrame(late.frames[0].second);
  ASSERT_EQ(frame.cache_ids.size(), size_t{1});
  Frame first = frame;
  first.cache_ids.clear();
  frame.requests.clear();
  cluster.at(0).OnFrame(1, EncodeFrame(first), 0);
  cluster.ClearLogs();
  cluster.Run();
  EXPECT_EQ(*cluster.sets(1).Find(2), (std::vector<Rank>{0, 2}));
  cluster.at(0).OnFrame(1, EncodeFrame(frame), 0);
  cluster.Run();
  ASSERT_EQ(cluster.log(1).size(), size_t{3});
  EXPECT_TRUE(cluster.log(1)[2].error.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(cluster.log(1)[2].error.message(),
                  "'x' in process set 1: the process set was removed");
  EXPECT_EQ(cluster.at(1).participant().waiting(), size_t{0});
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

}  // namespace
}  // namespace tfring::testing::process_sets_test
