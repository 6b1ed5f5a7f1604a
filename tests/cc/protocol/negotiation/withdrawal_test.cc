#include <string>
#include <vector>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// A step that fails on one rank: what ends on which ranks, what still runs, and that the next
// attempt meets nothing of the one before.
namespace tfring::testing::withdrawal_test {
namespace {

std::string Failed(Rank rank) {
  return "the step of rank " + std::to_string(rank) + " failed: NaN";
}

void Withdraw(Cluster* cluster, Rank rank, uint64_t attempt = 0,
              ProcessSetId set = kGlobalProcessSet) {
  cluster->at(rank).Withdraw(set, attempt, Failed(rank), 0);
}

// The last plan that `rank` got ended `name`, because of rank `failed`.
void ExpectAborted(const Cluster& cluster, Rank rank, const std::string& name, Rank failed) {
  ASSERT_TRUE(!cluster.log(rank).empty());
  const TakenPlan& plan = cluster.log(rank).back();
  EXPECT_TRUE(plan.error.code() == StatusCode::kAborted);
  EXPECT_CONTAINS(plan.error.message(), "tensor '" + name + "'");
  EXPECT_CONTAINS(plan.error.message(), Failed(failed));
  EXPECT_EQ(plan.items.at(0).name, name);
}

void ExpectNothingLeft(Cluster* cluster, int size) {
  EXPECT_EQ(cluster->fatal.ToString(), "Ok");
  for (Rank rank = 0; rank < size; ++rank)
    EXPECT_EQ(cluster->at(rank).participant().waiting(), size_t{0});
}

// All ranks run one more collective, in this attempt.
void ExpectWorks(Cluster* cluster, int size, uint64_t attempt, const std::string& name = "x") {
  cluster->ClearLogs();
  for (Rank rank = 0; rank < size; ++rank) cluster->Submit(rank, Allreduce(name), attempt);
  cluster->Run();
  for (Rank rank = 0; rank < size; ++rank) {
    EXPECT_EQ(cluster->Only(rank).error.ToString(), "Ok");
    EXPECT_EQ(cluster->Only(rank).members.size(), static_cast<size_t>(size));
  }
  ExpectNothingLeft(cluster, size);
}

TEST(WhatIsIncompleteEndsOnAllRanksThatAsked) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    for (Rank failed : {0, 1, 2}) {
      Cluster cluster(3, Config(), seed);
      for (Rank rank : {0, 1, 2}) {
        // Each rank waits for one of the others: no step could ever end.
        cluster.Submit(rank, Allreduce("x" + std::to_string(rank)));
        cluster.Submit(rank, Allreduce("x" + std::to_string((rank + 1) % 3)));
      }
      cluster.Run();
      EXPECT_TRUE(cluster.log(failed).empty());
      Withdraw(&cluster, failed);
      cluster.Run();
      for (Rank rank : {0, 1, 2}) {
        EXPECT_EQ(cluster.log(rank).size(), size_t{2});
        for (const TakenPlan& plan : cluster.log(rank)) {
          EXPECT_TRUE(plan.error.code() == StatusCode::kAborted);
          EXPECT_CONTAINS(plan.error.message(), Failed(failed));
        }
        // Those that it reached follow at once; the rank itself has left before.
        EXPECT_EQ(cluster.left[rank].size(), size_t{rank == failed ? 0u : 1u});
      }
      ExpectNothingLeft(&cluster, 3);
      ExpectWorks(&cluster, 3, 1);
    }
  }
}

TEST(WhatIsCompleteRuns) {
  Config config;
  config.max_plans_in_flight = 1;
  config.fusion_threshold_bytes = 0;
  Cluster cluster(2, config);
  cluster.finish_plans = false;
  for (const char* name : {"runs", "complete"}) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce(name));
  }
  cluster.Submit(1, Allreduce("incomplete"));
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).items.at(0).name, "runs");
  Withdraw(&cluster, 1);
  cluster.Run();
  ExpectAborted(cluster, 1, "incomplete", 1);
  EXPECT_EQ(cluster.at(1).participant().waiting(), size_t{1});
  cluster.finish_plans = true;
  cluster.Run();
  for (Rank rank : {0, 1}) {
    EXPECT_EQ(cluster.log(rank).back().items.at(0).name, "complete");
    EXPECT_EQ(cluster.log(rank).back().error.ToString(), "Ok");
  }
  ExpectNothingLeft(&cluster, 2);
  // Rank 0 has heard of nothing yet: its next call tells it.
  cluster.Submit(0, Allreduce("next"));
  cluster.Run();
  ExpectAborted(cluster, 0, "next", 1);
  ExpectWorks(&cluster, 2, 1);
}

TEST(RequestsThatComeTooLateEnd) {
  Cluster cluster(3, Config());
  Withdraw(&cluster, 1);
  cluster.Submit(1, Allreduce("x"), 1);  // tries again
  cluster.Run();
  for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce("x"));
  cluster.Run();
  EXPECT_TRUE(cluster.log(1).empty());  // not with those of the step that failed
  for (Rank rank : {0, 2}) {
    ExpectAborted(cluster, rank, "x", 1);
    EXPECT_CONTAINS(cluster.Only(rank).error.message(), "broadcast them");
    cluster.Submit(rank, Allreduce("x"), 1);
  }
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).members, (std::vector<Rank>{0, 1, 2}));
  ExpectNothingLeft(&cluster, 3);
}

TEST(ARequestGoesOutBeforeTheWithdrawalThatFollowsIt) {
  Cluster cluster(2, Config());
  cluster.Submit(1, Allreduce("x"));
  Withdraw(&cluster, 1);
  cluster.Submit(1, Allreduce("y"), 1);
  cluster.Run();
  ExpectAborted(cluster, 1, "x", 1);
  EXPECT_TRUE(cluster.Only(1).error.message().find("broadcast") == std::string::npos);
  EXPECT_EQ(cluster.at(1).participant().waiting(), size_t{1});
}

TEST(CallsOfAnAttemptThatIsOverAreNotSent) {
  Cluster cluster(2, Config());
  cluster.Submit(0, Allreduce("x"));
  cluster.Run();
  Withdraw(&cluster, 1);
  cluster.Run();
  ExpectAborted(cluster, 0, "x", 1);
  const size_t frames = cluster.frames;
  cluster.Submit(0, Allreduce("y"));
  cluster.Submit(1, Allreduce("z"));
  EXPECT_EQ(cluster.at(1).TakeCalls().size(), size_t{1});  // not lost if the engine closes now
  cluster.Submit(1, Allreduce("z"));
  cluster.Run();
  EXPECT_EQ(cluster.frames, frames);
  ASSERT_EQ(cluster.refused.size(), size_t{2});
  for (const auto& [name, error] : cluster.refused) {
    EXPECT_TRUE(error.code() == StatusCode::kAborted);
    EXPECT_CONTAINS(error.message(), Failed(1));
  }
  Withdraw(&cluster, 0);  // it failed at the same time: no second failure
  ExpectWorks(&cluster, 2, 1);
}

TEST(TheFirstCauseIsTheOneThatAllGet) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    Cluster cluster(4, Config(), seed);
    for (Rank rank : {1, 2, 3}) cluster.Submit(rank, Allreduce("x"));
    cluster.Run();
    for (Rank rank : {1, 2}) Withdraw(&cluster, rank);
    cluster.Submit(0, Allreduce("y"));
    cluster.Run();
    const std::string first = cluster.Only(1).error.message();
    EXPECT_TRUE(first.find(Failed(1)) != std::string::npos ||
                first.find(Failed(2)) != std::string::npos);
    for (Rank rank : {2, 3}) EXPECT_EQ(cluster.Only(rank).error.message(), first);
    ExpectWorks(&cluster, 4, 1);
  }
}

TEST(ARankThatIsBehindFailsAsOftenAsTheOthers) {
  Cluster cluster(2, Config());
  constexpr uint64_t kTimes = 40;  // more than there are reasons kept
  for (uint64_t attempt = 0; attempt < kTimes; ++attempt) {
    cluster.at(1).Withdraw(0, attempt, "failure " + std::to_string(attempt) + ".", 0);
  }
  cluster.Submit(1, Allreduce("x"), kTimes);
  cluster.Run();
  for (uint64_t attempt = 0; attempt < kTimes; ++attempt) {
    cluster.ClearLogs();
    cluster.Submit(0, Allreduce("x"), attempt);
    cluster.Run();
    const uint64_t told = attempt < kTimes - 16 ? kTimes - 16 : attempt;
    EXPECT_CONTAINS(cluster.Only(0).error.message(), "failure " + std::to_string(told) + ".");
    EXPECT_TRUE(cluster.log(1).empty());
  }
  cluster.Submit(0, Allreduce("x"), kTimes);
  cluster.Run();
  EXPECT_EQ(cluster.Only(1).error.ToString(), "Ok");
  ExpectNothingLeft(&cluster, 2);
}

TEST(ALongReasonIsCut) {
  Attempts attempts;
  attempts.End(0, std::string(1 << 20, 'x'));
  attempts.Leave(0, 1);
  EXPECT_TRUE(attempts.WhyOver(0, 2)->size() < 4096);
  EXPECT_TRUE(attempts.WhyOver(0, 1) == nullptr);
  EXPECT_TRUE(attempts.WhyOver(1, 2) == nullptr);
  attempts.DropSet(0);
  EXPECT_TRUE(attempts.WhyOver(0, 2) == nullptr);
}

// Rank 1 sent an id that was evicted, and its step failed before it could send the request in full.
TEST(WhatIsResentBelongsToTheAttemptOfTheFirstTime) {
  for (bool joins : {false, true}) {
    Config config;
    config.cache_capacity = 1;
    Cluster cluster(3, config);
    for (const char* name : {"x", "y"}) {  // the second evicts the first, in the plan after it
      for (Rank rank : {0, 1, 2}) cluster.Submit(rank, Allreduce(name));
      if (std::string(name) == "x") cluster.Run();
    }
    // Rank 1 has not heard of the eviction when it asks for x again.
    cluster.Flush(1);
    cluster.Submit(1, Allreduce("x"));
    if (joins) cluster.Submit(1, Join());
    Withdraw(&cluster, 1);
    cluster.Submit(1, Allreduce("z"), 1);
    cluster.Run();
    EXPECT_TRUE(cluster.frames_of_type[static_cast<int>(FrameType::kResend)] >= 1);
    EXPECT_EQ(cluster.at(1).participant().waiting(), size_t{1});  // z
    cluster.ClearLogs();
    for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce("x"));
    cluster.Run();
    for (Rank rank : {0, 2}) ExpectAborted(cluster, rank, "x", 1);
    for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce("z"), 1);
    cluster.Run();
    EXPECT_EQ(cluster.Only(1).error.ToString(), "Ok");
    ExpectNothingLeft(&cluster, 3);
    ExpectWorks(&cluster, 3, 1);
  }
}

TEST(JoinsEndAndAreMadeAgain) {
  Cluster cluster(3, Config());
  cluster.Submit(1, Join());
  cluster.Submit(2, Allreduce("x"));
  cluster.Run();
  Withdraw(&cluster, 0);
  cluster.Run();
  ExpectAborted(cluster, 1, "join", 0);
  ExpectAborted(cluster, 2, "x", 0);
  // Rank 1 takes part again until it joins in the attempt that follows.
  ExpectWorks(&cluster, 3, 1);
  cluster.ClearLogs();
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, Join(), 1);
  cluster.Run();
  for (Rank rank : {0, 1, 2}) EXPECT_EQ(cluster.Only(rank).error.ToString(), "Ok");
  ExpectNothingLeft(&cluster, 3);
}

TEST(ARankThatHasJoinedTakesNoPartInTheFailureOfOtherSets) {
  for (bool asked : {false, true}) {
    Cluster cluster(3, Config(), OverlappingSets(), 1);
    if (asked) cluster.Submit(1, Allreduce("before", {4}, 2));
    cluster.Run();
    cluster.Submit(1, Join());
    cluster.Run();
    Withdraw(&cluster, 2, 0, 2);
    cluster.Submit(2, Allreduce("alone", {4}, 2), 1);
    cluster.Run();
    EXPECT_EQ(cluster.log(2).back().members, std::vector<Rank>{2});
    for (Rank rank : {0, 2}) cluster.Submit(rank, Join());
    cluster.Run();
    cluster.ClearLogs();
    // Only if it had a call there did it hear of the failure.
    EXPECT_EQ(cluster.left[1].size(), size_t{asked ? 1u : 0u});
    cluster.Submit(1, Allreduce("x", {4}, 2), asked ? 1 : 0);
    cluster.Submit(2, Allreduce("x", {4}, 2), 1);
    cluster.Run();
    for (Rank rank : {1, 2}) EXPECT_EQ(cluster.Only(rank).error.ToString(), "Ok");
    ExpectNothingLeft(&cluster, 3);
  }
}

TEST(OtherSetsGoOn) {
  Cluster cluster(3, Config(), OverlappingSets(), 1);
  cluster.Submit(0, Allreduce("x", {4}, 1));
  cluster.Submit(1, Allreduce("x", {4}, 2));
  cluster.Submit(1, Allreduce("x"));
  cluster.Run();
  Withdraw(&cluster, 1, 0, 1);
  cluster.Run();
  ExpectAborted(cluster, 0, "x", 1);
  EXPECT_EQ(cluster.at(1).participant().waiting(), size_t{2});
  cluster.ClearLogs();
  cluster.Submit(2, Allreduce("x", {4}, 2));
  for (Rank rank : {0, 2}) cluster.Submit(rank, Allreduce("x"));
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("y", {4}, 1), 1);
  cluster.Run();
  for (Rank rank : {0, 1, 2}) {
    for (const TakenPlan& plan : cluster.log(rank)) EXPECT_EQ(plan.error.ToString(), "Ok");
  }
  ExpectNothingLeft(&cluster, 3);
}

TEST(EveryKindEndsAndWorksAgain) {
  const std::vector<Request> requests = {
      Of(CollectiveKind::kBarrier, {}),
      Allgather("x", {2, 2}),
      Of(CollectiveKind::kAlltoall, {3}),
      Of(CollectiveKind::kScatter, {3}),
      Of(CollectiveKind::kBroadcast, {2}),
      Of(CollectiveKind::kGather, {2}),
      Of(CollectiveKind::kReduce, {2}),
      Of(CollectiveKind::kReducescatter, {3}),
      AddSet({0, 2}),
      Send(0, 2),
  };
  for (Request request : requests) {
    if (request.kind == CollectiveKind::kBarrier) request.shapes.clear();
    Cluster cluster(3, Config());
    cluster.Submit(0, request);
    cluster.Run();
    Withdraw(&cluster, 1);
    cluster.Run();
    ExpectAborted(cluster, 0, request.name, 1);
    cluster.Submit(2, request);
    cluster.Run();
    ExpectAborted(cluster, 2, request.name, 1);
    cluster.ClearLogs();
    const bool of_two = request.kind == CollectiveKind::kSendRecv;
    for (Rank rank : {0, 1, 2}) {
      if (rank != 1 || !of_two) cluster.Submit(rank, request, 1);
    }
    cluster.Run();
    for (Rank rank : {0, 2}) EXPECT_EQ(cluster.Only(rank).error.ToString(), "Ok");
    EXPECT_EQ(cluster.sets(0).all().size(), size_t{request.name == "add" ? 2u : 1u});
    ExpectNothingLeft(&cluster, 3);
  }
}

TEST(AWithdrawalFromASetThatIsRemovedMeanwhile) {
  Cluster cluster(3, Config(), OverlappingSets(), 1);
  Withdraw(&cluster, 1, 0, 1);
  cluster.Submit(0, Allreduce("x", {4}, 1));
  cluster.Run();
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, RemoveSet(1));
  cluster.Flush(1);
  cluster.Flush(2);
  // Rank 0 makes the plan while this is on its way.
  Withdraw(&cluster, 1, 1, 1);
  cluster.Run();
  Withdraw(&cluster, 1, 2, 1);
  cluster.Run();
  EXPECT_TRUE(cluster.sets(1).Find(1) == nullptr);
  cluster.ClearLogs();
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, AddSet({0, 1}));
  cluster.Run();
  EXPECT_EQ(cluster.sets(1).NextId(), 5);
  cluster.ClearLogs();
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("x", {4}, 4));
  cluster.Run();
  for (Rank rank : {0, 1}) EXPECT_EQ(cluster.Only(rank).error.ToString(), "Ok");
  ExpectNothingLeft(&cluster, 3);
}

TEST(ARankThatFailsAndLeaves) {
  Cluster cluster(3, Config());
  cluster.Submit(0, Allreduce("x"));
  Withdraw(&cluster, 2);
  cluster.Run();
  ExpectAborted(cluster, 0, "x", 2);
  cluster.at(0).OnDeparted(2, "", 0);
  cluster.Submit(1, Allreduce("x"));
  cluster.Submit(0, Allreduce("x"), 1);
  cluster.Run();
  ExpectAborted(cluster, 1, "x", 2);
  EXPECT_TRUE(cluster.log(0).back().error.code() == StatusCode::kCancelled);
  EXPECT_CONTAINS(cluster.log(0).back().error.message(), "rank 2 has shut down");
  ExpectNothingLeft(&cluster, 3);
}

}  // namespace
}  // namespace tfring::testing::withdrawal_test
