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

}  // namespace
}  // namespace tfring::testing::withdrawal_test
