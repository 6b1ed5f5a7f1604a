#include <functional>
#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// Process sets that come and go, refusals, and plans of the kinds with rows for each rank.
namespace tfring {
namespace {

using testing::Allreduce;
using testing::Cluster;

Request AddSet(std::vector<int64_t> ranks) {
  Request request;
  request.name = "add";
  request.kind = CollectiveKind::kAddProcessSet;
  request.splits = std::move(ranks);
  return request;
}

Request RemoveSet(int64_t id) {
  Request request;
  request.name = "remove";
  request.kind = CollectiveKind::kRemoveProcessSet;
  request.splits = {id};
  return request;
}

void OnAll(Cluster* cluster, int size, const Request& request) {
  cluster->ClearLogs();
  for (Rank rank = 0; rank < size; ++rank) cluster->Submit(rank, request);
  cluster->Run();
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
}

TEST(SetsComeAndGoWithThePlanEverywhere) {
  Cluster cluster(3, Config());
  OnAll(&cluster, 3, AddSet({0, 2}));
  for (Rank rank : {0, 1, 2}) {
    EXPECT_EQ(cluster.Only(rank).items[0].negotiated_values, (std::vector<int64_t>{1, 0, 2}));
    EXPECT_EQ(*cluster.sets(rank).Find(1), (std::vector<Rank>{0, 2}));
  }
  OnAll(&cluster, 3, AddSet({1}));
  EXPECT_EQ(cluster.Only(1).items[0].negotiated_values, (std::vector<int64_t>{2, 1}));
  OnAll(&cluster, 3, AddSet({0, 2}));
  EXPECT_TRUE(cluster.Only(1).error.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(cluster.Only(1).error.message(), "ranks 0, 2 is registered already, with id 1");
  OnAll(&cluster, 3, AddSet({0, 1, 2}));
  EXPECT_CONTAINS(cluster.Only(2).error.message(), "registered already, with id 0");
  OnAll(&cluster, 3, RemoveSet(1));
  EXPECT_EQ(cluster.Only(2).items[0].negotiated_values, std::vector<int64_t>{1});
  for (Rank rank : {0, 1, 2}) EXPECT_TRUE(cluster.sets(rank).Find(1) == nullptr);
  OnAll(&cluster, 3, RemoveSet(1));
  EXPECT_CONTAINS(cluster.Only(0).error.message(), "there is no process set 1");
  OnAll(&cluster, 3, AddSet({1, 2}));  // an id is never used again
  EXPECT_EQ(cluster.Only(0).items[0].negotiated_values, (std::vector<int64_t>{3, 1, 2}));
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
  EXPECT_EQ(cluster.at(1).cache_hits(), 1);
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
  EXPECT_EQ(cluster.at(1).cache_hits(), 1);
  EXPECT_EQ(cluster.Only(1).items[0].name, "x");
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

// The id was on its way when the set went, and there is another set by the time rank 0
// asks for the request in full.
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
  EXPECT_TRUE(cluster.log(1)[2].error.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(cluster.log(1)[2].error.message(), "process set 1 was removed");
  EXPECT_EQ(cluster.at(1).unplanned(), size_t{0});
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

TEST(ARefusalReachesAllWithRankAndReason) {
  Cluster cluster(3, Config());
  Request refused = Allreduce("x");
  refused.dtype = static_cast<DataType>(99);
  Refuse(InvalidArgument("no such dtype"), &refused);
  cluster.Submit(0, Allreduce("x"));
  cluster.Submit(1, refused);
  cluster.Submit(2, refused);
  cluster.Run();
  for (Rank rank : {0, 1, 2}) {
    EXPECT_TRUE(cluster.Only(rank).error.code() == StatusCode::kInvalidArgument);
    EXPECT_CONTAINS(cluster.Only(rank).error.message(), "invalid on ranks 1, 2: no such dtype");
  }
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

Request Of(CollectiveKind kind, Shape shape, std::vector<int64_t> splits = {}) {
  Request request = Allreduce("x", std::move(shape));
  request.kind = kind;
  request.splits = std::move(splits);
  return request;
}

void ExpectWrong(const Request& request, Rank self, const std::string& part) {
  const Status status = CheckRequest(request, {0, 1, 2}, self);
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), part);
}

TEST(CallsOfEveryKindAreChecked) {
  for (CollectiveKind kind : {CollectiveKind::kAlltoall, CollectiveKind::kScatter}) {
    EXPECT_TRUE(CheckRequest(Of(kind, {6}), {0, 1, 2}, 0).ok());
    EXPECT_TRUE(CheckRequest(Of(kind, {6}, {0, 5, 1}), {0, 1, 2}, 0).ok());
    ExpectWrong(Of(kind, {7}), 0, "7 rows cannot be cut into 3 equal parts");
    ExpectWrong(Of(kind, {6}, {3, 3}), 0, "2 splits for 3 ranks");
    ExpectWrong(Of(kind, {6}, {7, -1, 0}), 0, "negative number of rows");
    ExpectWrong(Of(kind, {6}, {1, 2, 4}), 0, "[1, 2, 4] sum up to 7, but the tensor has 6 rows");
    ExpectWrong(Of(kind, {6}, {INT64_MAX, 6, 1}), 0, "sum up to");
    Request two = Of(kind, {6});
    two.shapes.push_back({6});
    ExpectWrong(two, 0, "one tensor per call, not 2");
  }
  EXPECT_TRUE(CheckRequest(Of(CollectiveKind::kScatter, {7}), {0, 1, 2}, 1).ok());
  for (CollectiveKind kind : {CollectiveKind::kReducescatter, CollectiveKind::kAlltoall,
                              CollectiveKind::kGather, CollectiveKind::kScatter}) {
    ExpectWrong(Of(kind, {}), 0, "reshape it to [1]");
  }
  ExpectWrong(Of(CollectiveKind::kAllreduce, {6}, {6}), 0, "have no meaning here");
  for (CollectiveKind kind :
       {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    Request request = Of(kind, {6});
    request.root = 3;
    ExpectWrong(request, 0, "root rank 3");
  }
  ExpectWrong(AddSet({}), 0, "at least one rank");
  ExpectWrong(AddSet({1, 0}), 0, "have to ascend");
  ExpectWrong(AddSet({1, 1}), 0, "have to ascend");
  ExpectWrong(AddSet({0, 3}), 0, "rank 3, but ranks go from 0 to 2");
  ExpectWrong(RemoveSet(0), 0, "cannot be removed");
  Request add = AddSet({0});
  add.process_set = 1;
  ExpectWrong(add, 0, "all ranks have to take part");
}

TEST(SendsAreChecked) {
  Request send = Of(CollectiveKind::kSendRecv, {-1, 4});
  send.peer = 2;
  EXPECT_TRUE(CheckRequest(send, {0, 1, 2}, 2).ok());
  ExpectWrong(send, 0, "negative dimension");
  send.shapes.clear();
  EXPECT_TRUE(CheckRequest(send, {0, 1, 2}, 2).ok());
  ExpectWrong(send, 0, "at least one tensor");
  ExpectWrong(send, 1, "goes from rank 0 to rank 2, but rank 1 called it");
  send.peer = 3;
  ExpectWrong(send, 0, "rank 3 is not among the ranks of the process set");
  send.peer = 0;
  ExpectWrong(send, 0, "cannot send to itself");
}

TEST(PlansSayWhatEachRankCannotKnow) {
  Cluster cluster(2, Config());
  cluster.Submit(0, Of(CollectiveKind::kAlltoall, {5, 2}, {4, 1}));
  cluster.Submit(1, Of(CollectiveKind::kAlltoall, {6, 2}));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items[0].negotiated_values, (std::vector<int64_t>{4, 1, 3, 3}));
  EXPECT_EQ(cluster.Only(1).items[0].cache_id, 0u);
  cluster.ClearLogs();
  cluster.Submit(0, Of(CollectiveKind::kScatter, {5, 2}, {4, 1}));
  cluster.Submit(1, Of(CollectiveKind::kScatter, {0, 2}));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items[0].negotiated_values, (std::vector<int64_t>{4, 1}));
  cluster.ClearLogs();
  for (Rank rank : {0, 1}) cluster.Submit(rank, Of(CollectiveKind::kGather, {rank + 1, 2}));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items[0].negotiated_values, (std::vector<int64_t>{1, 2}));
  cluster.ClearLogs();
  Request send = Of(CollectiveKind::kSendRecv, {3, 7});
  send.peer = 1;
  cluster.Submit(0, send);
  send.shapes = {{-1, 7}};
  cluster.Submit(1, send);
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items[0].negotiated_values, (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

TEST(ASendIsAgreedBetweenTwo) {
  Cluster cluster(3, Config());
  Request send = Of(CollectiveKind::kSendRecv, {3});
  send.root = 2;
  send.peer = 0;
  cluster.Submit(2, send);
  send.shapes = {{4}};
  cluster.Submit(0, send);
  cluster.Run();
  EXPECT_CONTAINS(cluster.Only(0).error.message(), "[4] on rank 0; [3] on rank 2");
  cluster.ClearLogs();
  // Another kind under the same name: all learn of it.
  cluster.Submit(2, send);
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("x"));
  cluster.Run();
  for (Rank rank : {0, 1, 2}) {
    EXPECT_CONTAINS(cluster.Only(rank).error.message(), "the kind of collective");
  }
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

// While the send waits for the window, a rank that has no part in it uses its name.
TEST(TheNameOfAnAgreedSendIsFree) {
  Config config;
  config.max_plans_in_flight = 1;
  Cluster cluster(3, config);
  cluster.finish_plans = false;
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, Allreduce("busy"));
  cluster.Run();
  Request send = Of(CollectiveKind::kSendRecv, {3});
  send.root = 2;
  send.peer = 0;
  for (Rank rank : {0, 2}) cluster.Submit(rank, send);
  cluster.Run();
  cluster.Submit(1, Allreduce(send.name));
  cluster.Run();
  cluster.ClearLogs();
  cluster.finish_plans = true;
  cluster.Run();
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
  EXPECT_TRUE(cluster.log(1).empty());
  for (Rank rank : {0, 2}) {
    EXPECT_TRUE(cluster.Only(rank).kind == CollectiveKind::kSendRecv);
    EXPECT_EQ(cluster.Only(rank).members, (std::vector<Rank>{0, 2}));
  }
  cluster.ClearLogs();
  for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce(send.name));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).members, (std::vector<Rank>{0, 1, 2}));
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

// Each rank can count its own rows, which have no bytes, but not those of both.
TEST(MoreRowsThanCanBeCountedAreRefused) {
  Cluster cluster(2, Config());
  for (auto kind :
       {CollectiveKind::kAllgather, CollectiveKind::kGather, CollectiveKind::kAlltoall}) {
    Request request = Of(kind, {INT64_MAX - 1, 0});
    if (kind == CollectiveKind::kAlltoall) request.splits = {INT64_MAX - 1, 0};
    for (Rank rank : {0, 1}) cluster.Submit(rank, request);
    cluster.Run();
    for (Rank rank : {0, 1}) {
      EXPECT_TRUE(cluster.Only(rank).error.code() == StatusCode::kInvalidArgument);
      EXPECT_CONTAINS(cluster.Only(rank).error.message(), "ranks 0, 1 together hold more rows");
    }
    cluster.ClearLogs();
  }
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

// A plan that rank 0 got wrong, or that somebody else sends: rank 1 of three stops.
void ExpectFatal(const Request& request, const std::function<void(Plan*)>& change,
                 const std::string& part) {
  ProcessSets sets(3);
  Negotiator negotiator(1, 3, Config(), &sets);
  negotiator.Submit(request, 0);
  (void)negotiator.Drain();
  Frame frame;
  frame.type = FrameType::kPlans;
  Plan plan;
  plan.sequence = 1;
  plan.kind = request.kind;
  plan.dtype = request.dtype;
  plan.root = request.root;
  plan.peer = request.peer;
  plan.items = {{request.name, 0, {}}};
  change(&plan);
  frame.plans = {plan};
  negotiator.OnFrame(0, EncodeFrame(frame), 1);
  const Negotiator::Output out = negotiator.Drain();
  if (part.empty()) {
    EXPECT_EQ(out.fatal.ToString(), "Ok");
    EXPECT_EQ(out.plans.size(), size_t{1});
  } else {
    EXPECT_TRUE(out.fatal.code() == StatusCode::kInternal);
    EXPECT_CONTAINS(out.fatal.message(), part);
  }
}

void ExpectDims(const Request& request, std::vector<int64_t> dims, bool right) {
  ExpectFatal(
      request, [&](Plan* plan) { plan->items[0].negotiated_values = dims; },
      right ? "" : "wrong first dimensions");
}

TEST(WrongDimensionsOfEveryKind) {
  const Request alltoall = Of(CollectiveKind::kAlltoall, {3, 2}, {0, 1, 2});
  ExpectDims(alltoall, {9, 9, 9, 0, 1, 2, 7, 7, 7}, true);
  ExpectDims(alltoall, {9, 9, 9, 0, 2, 1, 7, 7, 7}, false);
  ExpectDims(alltoall, {9, 9, 9, 0, 1, 2, 7, INT64_MAX, 7}, false);
  ExpectDims(alltoall, {-1, 9, 9, 0, 1, 2, 7, 7, 7}, false);
  ExpectDims(alltoall, {9, 9, 9, 0, 1, 2, 7, 7}, false);
  Request scatter = Of(CollectiveKind::kScatter, {0, 2});
  ExpectDims(scatter, {1, 2, 3}, true);
  ExpectDims(scatter, {1, -2, 3}, false);
  ExpectDims(scatter, {1, INT64_MAX, 3}, false);
  ExpectDims(scatter, {1, 2}, false);
  scatter = Of(CollectiveKind::kScatter, {3, 2});
  scatter.root = 1;
  ExpectDims(scatter, {1, 1, 1}, true);
  ExpectDims(scatter, {1, 2, 0}, false);
  const Request gather = Of(CollectiveKind::kGather, {5, 2});
  ExpectDims(gather, {1, 5, 1}, true);
  ExpectDims(gather, {1, 6, 1}, false);
  Request receive = Of(CollectiveKind::kSendRecv, {-1, 2});
  receive.root = 2;
  receive.peer = 1;
  ExpectDims(receive, {9, 2}, true);
  ExpectDims(receive, {9, 3}, false);
  ExpectDims(receive, {-9, 2}, false);
  ExpectDims(receive, {INT64_MAX, 2}, false);
  receive.shapes.clear();
  ExpectDims(receive, {INT64_MAX, 2}, false);
  ExpectDims(receive, {}, true);
  ExpectDims(Of(CollectiveKind::kReduce, {4}), {4}, false);
  Request join;
  join.name = "join";
  join.kind = CollectiveKind::kJoin;
  ExpectDims(join, {2}, true);
  ExpectDims(join, {3}, false);
  ExpectDims(join, {}, false);
  ExpectDims(AddSet({0, 1}), {1, 0, 1}, true);
  ExpectDims(AddSet({0, 1}), {0, 0, 1}, false);
  ExpectDims(AddSet({0, 1}), {1, 0, 2}, false);
}

TEST(PlansForOthersAreRefused) {
  const auto absent = [](std::vector<Rank> ranks) {
    return [ranks](Plan* plan) { plan->absent = ranks; };
  };
  ExpectFatal(Allreduce("x"), absent({0}), "");
  Request broadcast = Of(CollectiveKind::kBroadcast, {4});
  ExpectFatal(broadcast, absent({2}), "");
  ExpectFatal(broadcast, absent({1}), "takes no part");
  ExpectFatal(broadcast, absent({3}), "which is no member");
  ExpectFatal(broadcast, absent({2, 2}), "which is no member");
  ExpectFatal(broadcast, absent({0}), "is its root");
  ExpectFatal(Of(CollectiveKind::kReducescatter, {4}), absent({2}), "needs all its ranks");
  ExpectFatal(
      Of(CollectiveKind::kAlltoall, {3}),
      [](Plan* plan) {
        plan->items[0].negotiated_values.assign(9, 1);
        plan->items[0].cache_id = 1;
      },
      "a cache id");
  Request send = Of(CollectiveKind::kSendRecv, {4});
  send.root = 1;
  send.peer = 0;
  ExpectFatal(send, [](Plan* plan) { plan->peer = 2; }, "is not what rank 1");
  ExpectFatal(send, [](Plan* plan) { plan->root = 2; }, "takes no part");
  ExpectFatal(
      RemoveSet(3), [](Plan* plan) { plan->items[0].negotiated_values = {3}; },
      "there is no process set 3");
}

TEST(ARequestIsRepeatedOnlyWhenAsked) {
  ProcessSets sets(2);
  Negotiator negotiator(0, 2, Config(), &sets);
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.requests = {Allreduce("x")};
  frame.requests[0].resent = true;
  negotiator.OnFrame(1, EncodeFrame(frame), 0);
  EXPECT_CONTAINS(negotiator.Drain().fatal.message(), "nobody asked for");
}

}  // namespace
}  // namespace tfring

TFRING_TEST_MAIN()
