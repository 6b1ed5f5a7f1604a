#include <algorithm>
#include <map>
#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::negotiator_test {
namespace {

// A mixed bag of calls, the same on every rank but for what allgather allows.
std::vector<Request> Calls(Rank rank, int count) {
  std::vector<Request> calls;
  for (int i = 0; i < count; ++i) {
    const std::string name = "tensor_" + std::to_string(i);
    Request request = i % 5 == 3 ? Allgather(name, {rank + i, 2}) : Allreduce(name, {i, 3});
    if (i % 5 == 1) request.dtype = DataType::kFloat16;
    if (i % 5 == 4) request.kind = CollectiveKind::kBroadcast;
    if (i % 10 == 7) {
      request.kind = CollectiveKind::kBarrier;
      request.shapes.clear();
    }
    calls.push_back(request);
  }
  return calls;
}

// Every rank submits all of `calls[rank]` in an order of its own while messages travel.
void SubmitInRandomOrder(Cluster* cluster, std::vector<std::vector<Request>> calls) {
  for (auto& own : calls) std::shuffle(own.begin(), own.end(), cluster->rng());
  size_t left = 0;
  for (const auto& own : calls) left += own.size();
  while (left > 0) {
    const size_t rank = cluster->Below(calls.size());
    if (!calls[rank].empty()) {
      cluster->Submit(static_cast<Rank>(rank), calls[rank].back());
      calls[rank].pop_back();
      --left;
      if (cluster->Below(3) == 0) cluster->Flush(static_cast<Rank>(rank));
    }
    if (cluster->Below(2) == 0) cluster->StepOnce();
  }
  cluster->Run();
}

std::vector<std::string> SortedNames(const std::vector<TakenPlan>& plans) {
  std::vector<std::string> names;
  for (const Plan& plan : plans) {
    for (const PlanItem& item : plan.items) names.push_back(item.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ExpectAllInFlightDone(Cluster* cluster, int size) {
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
  for (Rank rank = 0; rank < size; ++rank)
    EXPECT_EQ(cluster->at(rank).participant().waiting(), size_t{0});
}

void RunMixedRounds(int size, const Config& config, unsigned seed) {
  Cluster cluster(size, config, seed);
  for (int round = 0; round < 5; ++round) {
    cluster.ClearLogs();
    std::vector<std::vector<Request>> calls;
    for (Rank rank = 0; rank < size; ++rank) calls.push_back(Calls(rank, 30));
    std::vector<std::string> expected;
    for (const Request& request : calls[0]) expected.push_back(request.name);
    std::sort(expected.begin(), expected.end());
    SubmitInRandomOrder(&cluster, calls);
    for (Rank rank = 0; rank < size; ++rank) {
      EXPECT_EQ(LogText(cluster.log(rank)), LogText(cluster.log(0)));
      EXPECT_TRUE(SortedNames(cluster.log(rank)) == expected);
      for (const Plan& plan : cluster.log(rank)) EXPECT_EQ(plan.error.ToString(), "Ok");
    }
    ExpectAllInFlightDone(&cluster, size);
  }
}

TEST(RandomOrdersGiveOnePlanOrder) {
  for (int size = 1; size <= 5; ++size) {
    for (unsigned seed = 0; seed < 20; ++seed) RunMixedRounds(size, Config(), seed);
  }
}

TEST(SmallCachesResendAndStillAgree) {
  for (int64_t capacity : {0, 1, 3, 29}) {
    Config config;
    config.cache_capacity = capacity;
    for (unsigned seed = 0; seed < 20; ++seed) RunMixedRounds(3, config, seed);
  }
}

TEST(EvictedIdsAreAskedForAgain) {
  Config config;
  config.cache_capacity = 2;
  Cluster cluster(2, config);
  const auto both = [&cluster](const std::string& name) {
    cluster.Submit(0, Allreduce(name));
    cluster.Submit(1, Allreduce(name));
    cluster.Run();
  };
  both("a");
  both("b");
  // Rank 1 sends the id of "a" while the sequencer, which has not received it yet, evicts it.
  cluster.Submit(1, Allreduce("a"));
  Negotiator::Output late = cluster.at(1).Drain();
  ASSERT_EQ(late.frames.size(), size_t{1});
  EXPECT_EQ(DecodeFrame(late.frames[0].second)->cache_ids.size(), size_t{1});
  cluster.Submit(1, Allreduce("c"));
  cluster.Submit(1, Allreduce("d"));
  cluster.Submit(0, Allreduce("c"));
  cluster.Submit(0, Allreduce("d"));
  cluster.Run();
  const size_t resends = cluster.frames_of_type[static_cast<int>(FrameType::kResend)];
  EXPECT_EQ(resends, size_t{0});
  cluster.ClearLogs();
  cluster.at(0).OnFrame(1, late.frames[0].second, 0);
  cluster.Run();
  EXPECT_EQ(cluster.frames_of_type[static_cast<int>(FrameType::kResend)], size_t{1});
  cluster.Submit(0, Allreduce("a"));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items.at(0).name, "a");
  EXPECT_EQ(LogText(cluster.log(0)), LogText(cluster.log(1)));
  ExpectAllInFlightDone(&cluster, 2);
}

TEST(ACountedIdSurvivesItsEviction) {
  Config config;
  config.cache_capacity = 2;
  Cluster cluster(2, config);
  for (const char* name : {"a", "b"}) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce(name));
    cluster.Run();
  }
  cluster.Submit(1, Allreduce("a"));  // by id, counted
  cluster.Run();
  for (const char* name : {"c", "d"}) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce(name));
    cluster.Run();
  }
  cluster.ClearLogs();
  cluster.Submit(0, Allreduce("a"));  // in full, as its id is gone
  cluster.Run();
  EXPECT_EQ(cluster.frames_of_type[static_cast<int>(FrameType::kResend)], size_t{0});
  EXPECT_EQ(cluster.Only(1).items.at(0).name, "a");
  EXPECT_TRUE(cluster.Only(0).error.ok());
  // An id, once used, is never used for anything else.
  EXPECT_EQ(cluster.Only(1).items.at(0).cache_id, 5u);
}

TEST(AnnouncedEvictionsAreHeeded) {
  Config config;
  config.cache_capacity = 1;
  Cluster cluster(2, config);
  for (const char* name : {"a", "b", "a", "b"}) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce(name));
    cluster.Run();
  }
  // Every plan said that the other name's id is gone, so nobody used it.
  EXPECT_EQ(cluster.frames_of_type[static_cast<int>(FrameType::kResend)], size_t{0});
  EXPECT_EQ(cluster.at(1).participant().cache_hits(), 0);
  EXPECT_EQ(cluster.log(1).size(), size_t{4});
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

TEST(OverlappingSetsFollowOneSequence) {
  const std::vector<std::vector<Rank>> members = {{0, 1, 2}, {0, 1}, {1, 2}, {0, 2}};
  for (unsigned seed = 0; seed < 200; ++seed) {
    Config config;
    config.max_plans_in_flight = 1;
    config.cache_capacity = seed % 2 == 0 ? 1024 : 7;
    Cluster cluster(3, config, OverlappingSets(), seed);
    for (int round = 0; round < 3; ++round) {
      cluster.ClearLogs();
      std::vector<std::vector<Request>> calls(3);
      for (ProcessSetId set = 0; set < 4; ++set) {
        for (Rank rank : members[set]) {
          for (const char* name : {"a", "b", "c"}) {
            calls[rank].push_back(Allreduce(name, {set + 1}, set));
          }
        }
      }
      SubmitInRandomOrder(&cluster, calls);
      std::map<uint64_t, std::string> by_sequence;
      for (Rank rank = 0; rank < 3; ++rank) {
        uint64_t last = 0;
        for (const TakenPlan& plan : cluster.log(rank)) {
          EXPECT_TRUE(plan.sequence > last);
          last = plan.sequence;
          const auto [it, added] = by_sequence.try_emplace(plan.sequence, PlanText(plan));
          if (!added) EXPECT_EQ(PlanText(plan), it->second);
        }
        EXPECT_EQ(SortedNames(cluster.log(rank)).size(), size_t{9});
      }
      ExpectAllInFlightDone(&cluster, 3);
    }
  }
}

TEST(WhatNeedsADepartedRankIsCancelled) {
  Config config;
  config.max_plans_in_flight = 1;
  Cluster cluster(3, config, OverlappingSets(), 1);
  cluster.finish_plans = false;
  for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce("busy", {4}, 3));
  cluster.Run();
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, Allreduce("held"));  // ready, not planned
  cluster.Submit(0, Allreduce("waits"));
  for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce("other", {4}, 3));
  cluster.Run();
  cluster.ClearLogs();
  cluster.at(0).OnDeparted(1, "", 0);
  cluster.Run();
  EXPECT_EQ(cluster.log(0).size(), size_t{2});
  EXPECT_TRUE(cluster.log(1).empty());
  EXPECT_EQ(cluster.Only(2).items.at(0).name, "held");
  for (const Plan& plan : cluster.log(0)) {
    EXPECT_TRUE(plan.error.code() == StatusCode::kCancelled);
    EXPECT_CONTAINS(plan.error.message(),
                    "rank 1 has shut down while tensor '" + plan.items[0].name + "' was waiting");
  }
  cluster.ClearLogs();
  cluster.Submit(2, Allreduce("waits"));  // too late, and told so
  cluster.Run();
  EXPECT_TRUE(cluster.Only(2).error.code() == StatusCode::kCancelled);
  EXPECT_TRUE(cluster.log(0).empty());
  cluster.finish_plans = true;
  cluster.ClearLogs();
  cluster.Run();  // the others go on among themselves
  EXPECT_EQ(cluster.Only(2).items.at(0).name, "other");
  EXPECT_TRUE(cluster.Only(0).error.ok());
  ExpectAllInFlightDone(&cluster, 1);
}

TEST(OneRankPlansForItself) {
  Cluster cluster(1, Config());
  for (int round = 0; round < 2; ++round) {
    cluster.ClearLogs();
    cluster.Submit(0, Allgather("g", {5, 1}));
    cluster.Submit(0, Allreduce("x"));
    cluster.Run();
    EXPECT_EQ(cluster.log(0).size(), size_t{2});
    EXPECT_EQ(cluster.frames, size_t{0});
  }
  EXPECT_EQ(cluster.at(0).participant().cache_hits(), 2);
  EXPECT_EQ(cluster.log(0)[0].items[0].negotiated_values.at(0), 5);
  ExpectAllInFlightDone(&cluster, 1);
}

}  // namespace
}  // namespace tfring::testing::negotiator_test
