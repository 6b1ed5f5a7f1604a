// Who takes part: process sets that come and go, and ranks that have joined.
#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::membership_test {
namespace {

using Ranks = std::vector<Rank>;

std::unique_ptr<Call> Joining(ProcessSetId set = kGlobalProcessSet) {
  auto call = Bare(CollectiveKind::kJoin, "join");
  call->request.process_set = set;
  return call;
}

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

void ExpectSum(const Calls& calls, float sum) {
  for (const auto& call : calls) {
    EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
    EXPECT_TRUE(AllEqual(call->outputs[0], sum));
  }
}

TEST(SetsComeAndGo) {
  for (Link link : {Link::kInProcess, Link::kTcp}) {
    Job job(4, link);
    const ProcessSetId even = Add(&job, {0, 2}), others = Add(&job, {1, 2, 3});
    EXPECT_EQ(even, 1);
    EXPECT_EQ(others, 2);
    const auto sets = job[3].AllProcessSets();
    EXPECT_EQ(sets.size(), size_t{3});
    EXPECT_TRUE((sets.at(0) == Ranks{0, 1, 2, 3} && sets.at(2) == Ranks{1, 2, 3}));
    EXPECT_TRUE((*job[3].Members(even) == Ranks{0, 2}));
    EXPECT_TRUE(!job[3].Members(9).ok());
    Calls a = SumIn(&job, even, {0, 2}, "same"), b = SumIn(&job, others, {1, 2, 3}, "same");
    Calls all = SumIn(&job, kGlobalProcessSet, {0, 1, 2, 3}, "same");
    ExpectSum(a, 4.0f);
    ExpectSum(b, 9.0f);
    ExpectSum(all, 10.0f);
    Remove(&job, even);
    EXPECT_TRUE(!job[0].Members(even).ok());
    EXPECT_EQ(Add(&job, {3}), 3);  // an id is never used again
    ExpectSum(SumIn(&job, 3, {3}, "same"), 4.0f);
    ExpectSum(SumIn(&job, others, {1, 2, 3}, "same"), 9.0f);
  }
}

// Threads make calls while sets come and go: each call ends, well or as one of an unknown set.
TEST(CallsWhileSetsChange) {
  Job job(2, Link::kTcp);
  std::atomic<bool> stop{false};
  std::atomic<int> bad{0}, worked{0}, set{1};
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      while (!stop) {
        const ProcessSetId id = set;
        if (!job[r].Members(id).ok()) std::this_thread::yield();
        auto call = Bare(CollectiveKind::kBarrier, "alone");
        call->request.process_set = id;
        call->Start(&job[r]);
        Status status = call->Wait();
        if (status.ok()) ++worked;
        if (!status.ok() && status.code() != StatusCode::kInvalidArgument &&
            status.code() != StatusCode::kFailedPrecondition &&
            status.code() != StatusCode::kCancelled) {
          std::cerr << status.ToString() << "\n";
          ++bad;
        }
      }
    });
  }
  // Until a call has come through as well.
  for (int i = 0; i < 100 || (worked.load() == 0 && i < 100'000); ++i) {
    EXPECT_EQ(Add(&job, {i % 2}), i + 1);
    Remove(&job, i + 1);
    set = i + 2;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad.load(), 0);
  EXPECT_TRUE(worked.load() > 0);
}

// Rank r makes 2 * r + 1 steps, then joins; those who go on average over themselves.
TEST(JoinedRanksTakeNoPart) {
  for (Link link : {Link::kInProcess, Link::kTcp}) {
    for (int size = 1; size <= 4; ++size) {
      Job job(size, link);
      for (int round = 0; round < 3; ++round) {
        Calls joins(static_cast<size_t>(size));
        for (int r = 0; r < size; ++r) joins[r] = Joining();
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (int r = 0; r < size; ++r) {
          threads.emplace_back([&, r] {
            for (int step = 0; step < 2 * r + 1; ++step) {
              auto call = Allreduce("step", {8}, static_cast<float>(r));
              call->request.op = ReduceOp::kAverage;
              auto rows = Single(CollectiveKind::kAllgather, "rows", {r + 1}, 1.0f);
              call->Start(&job[r]);
              rows->Start(&job[r]);
              const int first = (step + 1) / 2;  // the first rank that has not joined
              const float mean = static_cast<float>(first + size - 1) / 2.0f;
              if (!call->Wait().ok() || !AllEqual(call->outputs[0], mean)) ++wrong;
              int expected = 0;
              for (int m = first; m < size; ++m) expected += m + 1;
              if (!rows->Wait().ok() || rows->outputs[0].size() != size_t(expected)) ++wrong;
            }
            joins[r]->Start(&job[r]);
            if (!joins[r]->Wait().ok()) ++wrong;
          });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(wrong.load(), 0);
        for (auto& join : joins) {
          EXPECT_TRUE((join->values == std::vector<int64_t>{size - 1}));
        }
        Ranks everybody;
        for (int r = 0; r < size; ++r) everybody.push_back(r);
        ExpectSum(SumIn(&job, kGlobalProcessSet, everybody, "step"),
                  static_cast<float>(size * (size + 1) / 2));
      }
    }
  }
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
