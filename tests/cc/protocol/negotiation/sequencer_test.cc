#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

// What rank 0 decides: who gets an error, which name is free when, and when plans are held back.
namespace tfring::testing::sequencer_test {
namespace {

// While the send waits for other plans to end, a rank that has no part in it uses its name.
TEST(TheNameOfAnAgreedSendIsFree) {
  Config config;
  config.max_plans_in_flight = 1;
  Cluster cluster(3, config);
  cluster.finish_plans = false;
  for (Rank rank : {0, 1, 2}) cluster.Submit(rank, Allreduce("busy"));
  cluster.Run();
  Request send = Send(2, 0, {3});
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

TEST(BatchesWhileBusy) {
  Config config;
  config.max_plans_in_flight = 1;
  Cluster cluster(2, config);
  cluster.finish_plans = false;
  for (int i = 0; i < 10; ++i) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("t" + std::to_string(i)));
    cluster.Run();
  }
  ASSERT_EQ(cluster.log(1).size(), size_t{1});  // the first leaves at once, the rest waits
  EXPECT_EQ(cluster.log(1)[0].items.size(), size_t{1});
  cluster.finish_plans = true;
  cluster.Run();
  ASSERT_EQ(cluster.log(1).size(), size_t{2});
  EXPECT_EQ(cluster.log(1)[1].items.size(), size_t{9});
  EXPECT_EQ(LogText(cluster.log(0)), LogText(cluster.log(1)));
}

TEST(SetsWithoutTheSequencerNeverWaitForIt) {
  Config config;
  config.max_plans_in_flight = 1;
  Cluster cluster(3, config, OverlappingSets(), 1);
  cluster.finish_plans = false;
  for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce("blocks", {4}, 1));
  cluster.Run();
  for (int i = 0; i < 5; ++i) {
    for (Rank rank : {1, 2}) cluster.Submit(rank, Allreduce("t" + std::to_string(i), {4}, 2));
    cluster.Run();
  }
  EXPECT_EQ(cluster.log(2).size(), size_t{5});
  EXPECT_EQ(cluster.log(1).size(), size_t{6});
}

// Rank 1 runs ahead. The others will make the call that it was refused, so they must not wait for
// it.
TEST(ACallBeyondTheMemoryForPendingRequestsEndsTheAttempt) {
  Config config;
  config.max_pending_bytes = 1 << 16;
  Cluster cluster(3, config);
  cluster.Submit(2, Allreduce("a0"));
  cluster.Run();
  for (int i = 0; i < 500; ++i) cluster.Submit(1, Allreduce("a" + std::to_string(i)));
  cluster.Run();
  std::vector<std::string> refused;  // calls for which there was no room
  for (const TakenPlan& plan : cluster.log(1)) {
    if (plan.error.code() != StatusCode::kResourceExhausted) continue;
    refused.push_back(plan.items[0].name);
    EXPECT_CONTAINS(plan.error.message(), "TFRING_MAX_PENDING_BYTES is 65536");
    EXPECT_CONTAINS(plan.error.message(), "by rank 1: rank 0 keeps");
  }
  ASSERT_EQ(refused.size(), size_t{1});  // the rest ended with the attempt
  EXPECT_EQ(cluster.log(1).size(), size_t{500});
  const std::string why = "the step of rank 1 failed: ResourceExhausted";
  EXPECT_CONTAINS(cluster.Only(2).error.message(), why);
  cluster.Submit(0, Allreduce(refused[0]));
  cluster.Run();
  EXPECT_CONTAINS(cluster.Only(0).error.message(), why);
  for (Rank rank : {0, 1, 2}) {
    EXPECT_EQ(cluster.at(rank).participant().waiting(), size_t{0});
    EXPECT_EQ(cluster.left[rank].size(), size_t{1});
  }
  // All go on, and there is room again.
  cluster.ClearLogs();
  for (int i = 0; i < 40; ++i) {
    for (Rank rank : {0, 1, 2}) cluster.Submit(rank, Allreduce("b" + std::to_string(i)), 1);
  }
  cluster.Run();
  size_t good = 0;
  for (const TakenPlan& plan : cluster.log(1)) good += plan.error.ok() ? plan.items.size() : 0;
  EXPECT_EQ(good, size_t{40});
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

TEST(ARequestThatCompletesItsTensorIsTakenAlsoWithoutRoom) {
  Config config;
  config.max_pending_bytes = 1;
  Cluster cluster(2, config);
  for (Rank rank : {1, 0}) {
    cluster.Submit(rank, Allreduce("x"));
    cluster.Run();
  }
  for (Rank rank : {0, 1}) EXPECT_EQ(cluster.Only(rank).error.ToString(), "Ok");
}

}  // namespace
}  // namespace tfring::testing::sequencer_test
