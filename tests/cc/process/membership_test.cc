// The ids of process sets.
#include <string>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::membership_test {
namespace {

using Ranks = std::vector<Rank>;

ProcessSetId Add(Job* job, const Ranks& ranks) {
  Calls calls = RunAll(job, [&](int) {
    auto call = Bare(CollectiveKind::kAddProcessSet, "sets");
    call->request.set_ranks = ranks;
    return call;
  });
  for (auto& call : calls) EXPECT_EQ(call->values.at(0), calls[0]->values.at(0));
  return static_cast<ProcessSetId>(calls[0]->values.at(0));
}

void Remove(Job* job, ProcessSetId id) {
  RunAll(job, [&](int) {
    auto call = Bare(CollectiveKind::kRemoveProcessSet, "sets");
    call->request.removed_set = id;
    return call;
  });
}

Calls SumIn(Job* job, ProcessSetId set, const Ranks& ranks, const std::string& name) {
  Calls calls;
  for (Rank r : ranks) {
    calls.push_back(Allreduce(name, {4}, static_cast<float>(r + 1)));
    calls.back()->request.process_set = set;
    calls.back()->Start(&(*job)[r]);
  }
  return calls;
}

// A function that was traced before names a set that does not exist now, and no other one.
TEST(IdsOfEarlierGenerationsAreNotUsedAgain) {
  Job job(2, Link::kInProcess, Config(), kNoRank,
          [](RankRuntimeParts* parts) { parts->engine.last_process_set = 6; });
  EXPECT_EQ(job[0].LastProcessSet(), 6);
  EXPECT_EQ(Add(&job, {1}), 7);
  EXPECT_EQ(job[1].LastProcessSet(), 7);
  const Calls old = SumIn(&job, 6, {0, 1}, "old");
  for (const auto& call : old) {
    const Status status = call->Wait();
    EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
    EXPECT_CONTAINS(status.message(), "there is no process set 6");
    EXPECT_CONTAINS(status.message(), "has to be traced again");
  }
  Remove(&job, 7);
  EXPECT_EQ(Add(&job, {0}), 8);
  EXPECT_EQ(job[0].LastProcessSet(), 8);
}

}  // namespace
}  // namespace tfring::membership_test
