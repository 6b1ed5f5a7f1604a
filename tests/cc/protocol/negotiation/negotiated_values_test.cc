#include "ops/runtime/protocol/negotiation/negotiated_values.h"

#include <functional>
#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// The values that a plan says and no rank knows alone, and plans that a rank must not run.
namespace tfring::testing::negotiated_values_test {
namespace {

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
  negotiator.Submit(1, request, 0);
  (void)negotiator.Drain();
  Frame frame;
  frame.type = FrameType::kPlans;
  Plan plan = PlanFor(request);
  plan.sequence = 1;
  plan.items = {{request.name, 0, {}}};
  change(&plan);
  frame.plans = {plan};
  negotiator.OnFrame(0, EncodeFrame(frame), 1);
  const Negotiator::Output out = negotiator.Drain();
  if (part.empty()) {
    EXPECT_EQ(out.fatal.ToString(), "Ok");
    EXPECT_EQ(out.runs.size(), size_t{1});
  } else {
    EXPECT_TRUE(out.fatal.code() == StatusCode::kInternal);
    EXPECT_CONTAINS(out.fatal.message(), part);
  }
}

using Dims = std::vector<int64_t>;

void ExpectValues(const Request& request, const Dims& values, bool right) {
  ExpectFatal(
      request, [&](Plan* plan) { plan->items[0].negotiated_values = values; },
      right ? "" : "wrong negotiated values");
}

TEST(WrongValuesOfEveryKind) {
  const Request alltoall = Of(CollectiveKind::kAlltoall, {3, 2}, {0, 1, 2});
  ExpectValues(alltoall, {0, 1, 2, 9, 1, 7}, true);
  ExpectValues(alltoall, {0, 2, 1, 9, 1, 7}, false);
  ExpectValues(alltoall, {0, 1, 2, 9, 2, 7}, false);
  ExpectValues(alltoall, {0, 1, 2, 9, 1, INT64_MAX}, false);
  ExpectValues(alltoall, {0, 1, 2, -1, 1, 7}, false);
  ExpectValues(alltoall, {0, 1, 2, 9, 1}, false);
  ExpectValues(alltoall, {0, 1, 2, 0, 1, 2, 0, 1, 2}, false);
  Request scatter = Of(CollectiveKind::kScatter, {0, 2});
  ExpectValues(scatter, {1, 2, 3}, true);
  ExpectValues(scatter, {1, -2, 3}, false);
  ExpectValues(scatter, {1, INT64_MAX, 3}, false);
  ExpectValues(scatter, {1, 2}, false);
  scatter = Of(CollectiveKind::kScatter, {3, 2});
  scatter.root = 1;
  ExpectValues(scatter, {1, 1, 1}, true);
  ExpectValues(scatter, {1, 2, 0}, false);
  const Request allgather = Of(CollectiveKind::kAllgather, {5, 2});
  for (const Dims& wrong : {Dims{}, {5}, {1, 6, 3}, {1, 5, -1}, {1, 5, INT64_MAX}}) {
    ExpectValues(allgather, wrong, false);
  }
  ExpectValues(allgather, {1, 5, 3}, true);
  const Request gather = Of(CollectiveKind::kGather, {5, 2});
  ExpectValues(gather, {1, 5, 1}, true);
  ExpectValues(gather, {1, 6, 1}, false);
  Request receive = Send(2, 1, {-1, 2});
  ExpectValues(receive, {9, 2}, true);
  ExpectValues(receive, {9, 3}, false);
  ExpectValues(receive, {-9, 2}, false);
  ExpectValues(receive, {INT64_MAX, 2}, false);
  receive.shapes.clear();
  ExpectValues(receive, {INT64_MAX, 2}, false);
  ExpectValues(receive, {}, true);
  ExpectValues(Of(CollectiveKind::kReduce, {4}), {4}, false);
  ExpectValues(Join(), {2}, true);
  ExpectValues(Join(), {3}, false);
  ExpectValues(Join(), {}, false);
  ExpectValues(AddSet({0, 1}), {1, 0, 1}, true);
  ExpectValues(AddSet({0, 1}), {0, 0, 1}, false);
  ExpectValues(AddSet({0, 1}), {1, 0, 2}, false);
}

// None of these may make rank 1 write where it has no memory.
TEST(ValuesThatOverflowOrNameAnotherShape) {
  constexpr int64_t kHuge = INT64_MAX / 2;
  const Request gather = Of(CollectiveKind::kGather, {2, 3});
  ExpectValues(gather, {kHuge, 2, kHuge}, false);
  ExpectValues(Of(CollectiveKind::kAllgather, {2, 3}), {kHuge, 2, kHuge}, false);
  const Request alltoall = Of(CollectiveKind::kAlltoall, {2, 3}, {2, 0, 0});
  ExpectValues(alltoall, {3, -1, 0, 0, -1, 0}, false);
  ExpectValues(alltoall, {2, 0, 0, kHuge, 0, kHuge}, false);
  const Request none = Of(CollectiveKind::kAllgather, {0, kHuge, kHuge});
  ExpectValues(none, {0, 0, 0}, true);
  ExpectValues(none, {0, 0, 1}, false);
  const Request send = Send(1, 2, {2, 3});
  ExpectValues(send, {2, 3}, true);
  for (const Shape& wrong : {Shape{2, 4}, Shape{2}, Shape{}}) ExpectValues(send, wrong, false);
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
        plan->items[0].negotiated_values.assign(6, 1);
        plan->items[0].cache_id = 1;
      },
      "a cache id");
  ExpectFatal(
      Of(CollectiveKind::kAllgather, {5, 2}),
      [](Plan* plan) { plan->items = {{"x", 0, {1, 5, 1}}, {"y", 0, {1, 5, 1}}}; },
      "fuses allgathers");
  const Request send = Send(1, 0);
  ExpectFatal(send, [](Plan* plan) { plan->peer = 2; }, "is not what rank 1");
  ExpectFatal(send, [](Plan* plan) { plan->root = 2; }, "takes no part");
  ExpectFatal(
      RemoveSet(3), [](Plan* plan) { plan->items[0].negotiated_values = {3}; },
      "there is no process set 3");
}

}  // namespace
}  // namespace tfring::testing::negotiated_values_test
