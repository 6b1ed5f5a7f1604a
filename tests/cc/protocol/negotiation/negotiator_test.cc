#include <algorithm>
#include <map>
#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::negotiator_test {
namespace {

void ExpectAllInFlightDone(Cluster* cluster, int size) {
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
  for (Rank rank = 0; rank < size; ++rank)
    EXPECT_EQ(cluster->at(rank).participant().waiting(), size_t{0});
}

TEST(AFullCacheKeepsWhatItHas) {
  Config config;
  config.cache_capacity = 1;
  Cluster cluster(2, config);
  for (const char* name : {"a", "b", "a", "b"}) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce(name));
    cluster.Run();
  }
  for (Rank rank : {0, 1}) EXPECT_EQ(cluster.at(rank).participant().cache_hits(), 1);
  // The name may stand for another request, under another id.
  for (int64_t rows : {7, 7}) {
    cluster.ClearLogs();
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("a", {rows}));
    cluster.Run();
    EXPECT_EQ(cluster.Only(1).items.at(0).cache_id, 2u);
  }
  ExpectAllInFlightDone(&cluster, 2);
}

TEST(SteadyStateTravelsAsIds) {
  Cluster cluster(2, Config());
  const auto round = [&cluster] {
    cluster.ClearLogs();
    for (int i = 0; i < 500; ++i) {
      const Request request = Allreduce("gradient_of_some_layer_" + std::to_string(i), {i + 1});
      cluster.Submit(0, request);
      cluster.Submit(1, request);
    }
    cluster.Run();
    return cluster.bytes;
  };
  const size_t first = round();
  const size_t second = round();
  EXPECT_TRUE(first > 500 * 50);
  EXPECT_TRUE(second < 500 * 7);
  EXPECT_EQ(cluster.frames, size_t{2});
  EXPECT_EQ(cluster.at(0).participant().cache_hits(), 500);
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 500);
  EXPECT_EQ(cluster.log(1).size(), size_t{1});
  EXPECT_EQ(cluster.log(1)[0].items[7].name, "gradient_of_some_layer_7");
}

TEST(AllgatherDimensionsStayWithTheCachedId) {
  Cluster cluster(3, Config());
  const auto round = [&cluster](std::vector<int64_t> rows) {
    cluster.ClearLogs();
    for (Rank rank = 0; rank < 3; ++rank) cluster.Submit(rank, Allgather("g", {rows[rank], 2}));
    cluster.Run();
    for (Rank rank = 0; rank < 3; ++rank) {
      const Plan plan = cluster.Only(rank);
      EXPECT_TRUE(plan.error.ok());
      ASSERT_EQ(plan.items.size(), size_t{1});
      EXPECT_TRUE(plan.items[0].negotiated_values == rows);
    }
  };
  round({1, 2, 3});
  round({1, 2, 3});
  EXPECT_EQ(cluster.at(2).participant().cache_hits(), 1);
  round({1, 0, 3});  // one rank in full, two by id
  EXPECT_EQ(cluster.at(2).participant().cache_hits(), 2);
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 1);
  round({1, 0, 3});
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 2);
  EXPECT_TRUE(cluster.Only(2).items[0].cache_id != 0);
}

TEST(DisagreementEndsTheCallAndNothingElse) {
  Cluster cluster(3, Config());
  for (int round = 0; round < 3; ++round) {
    cluster.ClearLogs();
    for (Rank rank = 0; rank < 3; ++rank) {
      Request request = Allreduce("x");
      if (rank == 1 && round == 1) request.dtype = DataType::kInt64;  // the others send the id
      cluster.Submit(rank, request);
    }
    cluster.Run();
    for (Rank rank = 0; rank < 3; ++rank) {
      const Plan plan = cluster.Only(rank);
      EXPECT_EQ(plan.items.at(0).name, "x");
      EXPECT_TRUE(plan.error.code() ==
                  (round == 1 ? StatusCode::kFailedPrecondition : StatusCode::kOk));
      if (round == 1) {
        EXPECT_CONTAINS(plan.error.message(), "float32 on ranks 0, 2; int64 on rank 1");
      }
    }
  }
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 1);  // the id has kept its meaning
  ExpectAllInFlightDone(&cluster, 3);
}

}  // namespace
}  // namespace tfring::testing::negotiator_test
