#include <string>

#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

TEST(EagerCallsInDifferentOrdersAreReportedWithBothNames) {
  Config config;
  config.stall_warning = 10 * kSecond;
  Cluster cluster(3, config);
  EXPECT_EQ(cluster.at(0).next_deadline(), kNever);
  cluster.Submit(0, Allreduce("loss"));
  cluster.Submit(1, Allreduce("accuracy"));
  cluster.Run();
  EXPECT_EQ(cluster.at(0).next_deadline(), 10 * kSecond);
  EXPECT_EQ(cluster.at(1).next_deadline(), kNever);
  cluster.now = 9 * kSecond;
  cluster.at(0).OnTime(cluster.now);
  cluster.Run();
  EXPECT_TRUE(cluster.warnings.empty());
  for (int i = 0; i < 2; ++i) {  // the second time it is too early to say it again
    cluster.now = (11 + i) * kSecond;
    cluster.at(0).OnTime(cluster.now);
    cluster.Run();
  }
  ASSERT_EQ(cluster.warnings.size(), size_t{2});
  EXPECT_CONTAINS(cluster.warnings[0],
                  "allreduce of tensor 'loss' has waited 11 s: ready on rank 0");
  EXPECT_CONTAINS(cluster.warnings[0],
                  "missing on rank 1, waiting for allreduce of tensor 'accuracy' instead");
  EXPECT_CONTAINS(cluster.warnings[0], "missing on rank 2, which has asked for nothing else");
  EXPECT_CONTAINS(cluster.warnings[1], "'accuracy'");
  EXPECT_CONTAINS(cluster.warnings[1], "'loss' instead");
  cluster.now = 21 * kSecond;
  cluster.at(0).OnTime(cluster.now);
  cluster.Run();
  EXPECT_EQ(cluster.warnings.size(), size_t{4});
  for (const char* name : {"loss", "accuracy"}) {
    for (Rank rank = 0; rank < 3; ++rank) {
      if ((rank == 0) != (name[0] == 'l') || rank == 2) cluster.Submit(rank, Allreduce(name));
    }
  }
  cluster.Run();
  EXPECT_EQ(cluster.at(0).next_deadline(), kNever);
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
  for (Rank rank : {0, 1, 2}) EXPECT_EQ(cluster.at(rank).waiting(), size_t{0});
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
  EXPECT_CONTAINS(cluster.warnings[0], "rank 1, which has asked for nothing else");
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
  EXPECT_CONTAINS(cluster.fatal.message(), "tensor 'x' has waited 30 s: ready on rank 1");
  EXPECT_EQ(cluster.at(0).next_deadline(), kNever);
}

}  // namespace
}  // namespace tfring::testing
