#include <algorithm>
#include <string>

#include "ops/runtime/protocol/negotiation/stall_inspector.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::sequencer_stalls_test {
namespace {

Request At(const char* call_site, Request request) {
  request.call_site = call_site;
  return request;
}

// Lets the negotiator of rank 0 look at the time; returns what it has to say.
std::vector<std::string> WarningsAt(TimePoint now, Cluster* cluster) {
  cluster->warnings.clear();
  cluster->now = now;
  cluster->at(0).OnTime(now);
  cluster->Run();
  return cluster->warnings;
}

TEST(AStallReportNamesTheLinesOfBothSides) {
  Config config;
  config.stall_warning = 10 * kSecond;
  Cluster cluster(4, config);
  EXPECT_EQ(cluster.at(0).next_deadline(), kNever);
  for (Rank rank : {0, 3}) cluster.Submit(rank, At("train.py:40", Allreduce("loss")));
  cluster.Submit(1, At("eval.py:57", Allreduce("accuracy")));
  cluster.Run();
  // Rank 2, which computes, may still come, but ranks 0, 1 and 3 need each other.
  EXPECT_EQ(cluster.at(0).next_deadline(), 3 * kSecond);
  EXPECT_EQ(cluster.at(1).next_deadline(), kNever);
  EXPECT_TRUE(WarningsAt(2 * kSecond, &cluster).empty());
  std::vector<std::string> warnings = WarningsAt(3 * kSecond, &cluster);
  ASSERT_EQ(warnings.size(), size_t{1});
  EXPECT_CONTAINS(warnings[0],
                  "these ranks wait for each other, for 3 s now: ranks 0, 3 wait at train.py:40 "
                  "(allreduce of tensor 'loss'); rank 1 waits at eval.py:57 (allreduce of tensor "
                  "'accuracy').");
  EXPECT_CONTAINS(warnings[0], "JoinCallback");
  EXPECT_CONTAINS(warnings[0], "600 s (TFRING_STALL_SHUTDOWN_TIME_SECONDS");
  EXPECT_TRUE(WarningsAt(9 * kSecond, &cluster).empty());  // once is enough
  warnings = WarningsAt(11 * kSecond, &cluster);
  ASSERT_EQ(warnings.size(), size_t{2});
  EXPECT_CONTAINS(
      warnings[0],
      "allreduce of tensor 'loss' has waited 11 s: ranks 0, 3 wait at train.py:40; rank "
      "1 is missing and waits at eval.py:57 (allreduce of tensor 'accuracy'); rank 2 is "
      "missing and waits in no collective.");
  EXPECT_CONTAINS(warnings[1], "tensor 'accuracy' has waited 11 s: rank 1 waits at eval.py:57");
  EXPECT_TRUE(WarningsAt(12 * kSecond, &cluster).empty());  // too early to say it again
  EXPECT_EQ(WarningsAt(21 * kSecond, &cluster).size(), size_t{2});
  for (const char* name : {"loss", "accuracy"}) {
    for (Rank rank = 0; rank < 4; ++rank) {
      if ((rank == 1) == (name[0] == 'l') || rank == 2) cluster.Submit(rank, Allreduce(name));
    }
  }
  cluster.Run();
  EXPECT_EQ(cluster.at(0).next_deadline(), kNever);
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
  for (Rank rank : {0, 1, 2, 3}) EXPECT_EQ(cluster.at(rank).participant().waiting(), size_t{0});
}

TEST(CallSitesOutliveTheResponseCache) {
  Config config;
  config.stall_warning = 10 * kSecond;
  Cluster cluster(3, config);
  for (int round = 0; round < 3; ++round) {
    for (Rank rank : {0, 1}) {
      cluster.Submit(rank, At(rank == 0 ? "a.py:1" : "b.py:2", Allreduce("x")));
    }
    if (round < 2) cluster.Submit(2, At("c.py:3", Allreduce("x")));
    cluster.Run();
  }
  EXPECT_EQ(cluster.at(1).participant().cache_hits(),
            2);  // lines that differ, but stay, cost no hits
  const std::vector<std::string> warnings = WarningsAt(20 * kSecond, &cluster);
  ASSERT_EQ(warnings.size(), size_t{1});
  EXPECT_CONTAINS(warnings[0], "rank 0 waits at a.py:1; rank 1 waits at b.py:2; rank 2 is missing");
}

// Also of a named call, for which lines need not be equal: the report has to name the right one.
TEST(ACallThatMovesToAnotherLineIsNamedWithThatLine) {
  Config config;
  config.stall_warning = 10 * kSecond;
  Cluster cluster(2, config);
  for (Rank rank : {0, 1}) cluster.Submit(rank, At("a.py:1", Allreduce("x")));
  cluster.Run();
  cluster.Submit(1, At("a.py:9", Allreduce("x")));
  cluster.Run();
  const std::vector<std::string> warnings = WarningsAt(10 * kSecond, &cluster);
  ASSERT_EQ(warnings.size(), size_t{1});
  EXPECT_CONTAINS(warnings[0], "rank 1 waits at a.py:9; rank 0 is missing");
}

TEST(UnnamedCallsOnDifferentLinesEndWithBothAlsoIfOneIsCached) {
  for (const bool check : {true, false}) {
    Config config;
    config.call_site_check = check;
    Cluster cluster(2, config);
    for (const char* line : {"train.py:1", "train.py:2"}) {
      cluster.ClearLogs();
      for (Rank rank : {0, 1}) {
        Request request = At(rank == 0 ? "train.py:1" : line, Allreduce("eager.allreduce.0"));
        request.unnamed = true;
        cluster.Submit(rank, request);
      }
      cluster.Run();
      const bool differ = check && line[9] == '2';
      for (Rank rank : {0, 1}) {
        ASSERT_EQ(cluster.log(rank).size(), size_t{1});
        const Status& error = cluster.log(rank)[0].error;
        EXPECT_EQ(error.code() == StatusCode::kFailedPrecondition, differ);
        if (!differ) continue;
        EXPECT_CONTAINS(error.message(), "train.py:1 on rank 0; train.py:2 on rank 1");
      }
    }
  }
}

TEST(ACircleIsReportedOnlyWhenItsRanksAreQuiet) {
  Config config;
  config.stall_warning = 10 * kSecond;
  Cluster cluster(2, config);
  cluster.Submit(0, Allreduce("bucket.0"));
  cluster.Submit(1, Allreduce("bucket.1"));
  cluster.Run();
  cluster.now = 2 * kSecond;  // rank 0 works: no circle
  cluster.Submit(0, Allreduce("bucket.2"));
  cluster.Run();
  EXPECT_TRUE(WarningsAt(3 * kSecond, &cluster).empty());
  EXPECT_EQ(cluster.at(0).next_deadline(), 5 * kSecond);
  EXPECT_EQ(WarningsAt(5 * kSecond, &cluster).size(), size_t{1});
}

TEST(TheTimeInWhichTheProcessWasStoppedIsNoWaiting) {
  Config config;
  config.stall_warning = 10 * kSecond;
  Cluster cluster(2, config);
  cluster.Submit(0, At("a.py:1", Allreduce("bucket.0")));
  cluster.Submit(1, Allreduce("bucket.1"));
  cluster.Run();
  cluster.now = 2 * kSecond;
  cluster.Submit(0, Allreduce("bucket.2"));
  cluster.Run();
  constexpr TimePoint kStopped = 3600 * kSecond;
  cluster.at(0).PutOff(kStopped);
  EXPECT_TRUE(WarningsAt(kStopped + 4 * kSecond, &cluster).empty());  // rank 0 called 2 s ago
  std::vector<std::string> warnings = WarningsAt(kStopped + 5 * kSecond, &cluster);
  ASSERT_EQ(warnings.size(), size_t{1});
  EXPECT_CONTAINS(warnings[0], "these ranks wait for each other, for 3 s now");
  warnings = WarningsAt(kStopped + 10 * kSecond, &cluster);
  ASSERT_EQ(warnings.size(), size_t{2});
  EXPECT_CONTAINS(warnings[0], "'bucket.0' has waited 10 s: rank 0 waits at a.py:1");
}

TEST(RanksInCirclesAreThoseThatCannotGoOn) {
  using Ranks = std::vector<Rank>;
  EXPECT_TRUE(RanksInCircles({}).empty());
  // Rank 1 computes.
  EXPECT_TRUE(RanksInCircles({{{0}, {1}}}).empty());
  // Rank 0 waits for rank 1, which waits for rank 2, which computes.
  EXPECT_TRUE(RanksInCircles({{{0}, {1}}, {{1}, {2}}}).empty());
  EXPECT_EQ(RanksInCircles({{{0}, {1}}, {{1}, {0}}}), (Ranks{0, 1}));
  // A circle of three; rank 3 waits for one of them.
  EXPECT_EQ(RanksInCircles({{{0}, {1}}, {{1}, {2}}, {{2}, {0}}, {{3}, {2}}}), (Ranks{0, 1, 2, 3}));
  // Rank 0 has a second call, for which nobody is missing but rank 2, which computes.
  EXPECT_TRUE(RanksInCircles({{{0}, {1}}, {{1}, {0}}, {{0}, {2}}}).empty());
}

TEST(StallReportsLeaveOutWhatOnlyWaitsForOtherPlans) {
  Config config;
  config.max_plans_in_flight = 1;
  config.stall_warning = kSecond;
  Cluster cluster(2, config);
  cluster.finish_plans = false;
  for (const char* name : {"runs", "held"}) {
    for (Rank rank : {0, 1}) cluster.Submit(rank, Allreduce(name));
    cluster.Run();
  }
  cluster.Submit(0, Allreduce("x"));
  cluster.at(0).OnTime(kSecond);
  cluster.Run();
  ASSERT_EQ(cluster.warnings.size(), size_t{1});
  EXPECT_CONTAINS(cluster.warnings[0], "tensor 'x'");
  EXPECT_CONTAINS(cluster.warnings[0], "rank 1 is missing and waits in no collective");
}

TEST(ManyStallsAtOnceAreSummedUp) {
  Config config;
  config.stall_warning = kSecond;
  Cluster cluster(2, config);
  for (int i = 0; i < 100; ++i) cluster.Submit(0, Allreduce("t" + std::to_string(i)));
  cluster.at(0).OnTime(kSecond);
  cluster.Run();
  ASSERT_EQ(cluster.warnings.size(), size_t{9});
  EXPECT_CONTAINS(cluster.warnings[8], "92 more tensors");
}

TEST(TheStallLimitIsFatal) {
  Config config;
  config.stall_warning = 10 * kSecond;
  config.stall_shutdown = 30 * kSecond;
  Cluster cluster(2, config);
  cluster.Submit(1, Allreduce("x"));
  cluster.Run();
  for (int second : {10, 20, 29}) {
    cluster.at(0).OnTime(second * kSecond);
    cluster.Run();
  }
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
  cluster.at(0).OnTime(30 * kSecond);
  cluster.Run();
  EXPECT_TRUE(cluster.fatal.code() == StatusCode::kDeadlineExceeded);
  EXPECT_CONTAINS(cluster.fatal.message(),
                  "tensor 'x' has waited 30 s: rank 1 waits; rank 0 is missing");
  EXPECT_EQ(cluster.at(0).next_deadline(), kNever);
}

// Whether the job has ended for ranks 0 and 1, which wait for each other from 20 s on, at `now`.
bool CircleEnds(const Config& config, bool in_run, TimePoint now) {
  Cluster cluster(3, config);
  Request eager = Allreduce("loss"), other = Allreduce("accuracy");
  other.in_run = in_run;
  cluster.Submit(0, eager);
  cluster.Run();
  cluster.now = 20 * kSecond;
  cluster.Submit(1, other);
  cluster.Run();
  while (cluster.now < now && cluster.fatal.ok()) {
    cluster.now = std::min(cluster.at(0).next_deadline(), now);
    cluster.at(0).OnTime(cluster.now);
    cluster.Run();
  }
  if (cluster.fatal.ok()) return false;
  EXPECT_TRUE(cluster.fatal.code() == StatusCode::kDeadlineExceeded);
  EXPECT_CONTAINS(cluster.fatal.message(), "these ranks wait for each other, for 45 s now: rank 0");
  EXPECT_CONTAINS(cluster.fatal.message(), "so the job ends after 45 s. Every rank");
  return true;
}

TEST(RanksThatWaitForEachOtherInEagerCallsEndTheJobSooner) {
  Config config;
  EXPECT_TRUE(!CircleEnds(config, false, 64 * kSecond));
  EXPECT_TRUE(CircleEnds(config, false, 68 * kSecond));
  EXPECT_TRUE(!CircleEnds(config, true, 300 * kSecond));  // a graph may go on
  config.stall_shutdown = 0;
  EXPECT_TRUE(!CircleEnds(config, false, 300 * kSecond));
}

}  // namespace
}  // namespace tfring::testing::sequencer_stalls_test
