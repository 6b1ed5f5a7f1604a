// Collectives between several ranks in one process, through every layer of the runtime.
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::collectives_test {
namespace {

const Link kLinks[] = {Link::kInProcess, Link::kUnix, Link::kTcp};

TEST(EveryKindWorksForOneToFourRanks) {
  for (Link link : kLinks) {
    for (int size = 1; size <= 4; ++size) {
      Job job(size, link);
      Calls reduce, gather, spread, barrier;
      for (int r = 0; r < size; ++r) {
        reduce.push_back(Allreduce("sum", {3, 5}, static_cast<float>(r + 1)));
        reduce.back()->Tensor({2}, 10.0f);
        const auto value = static_cast<float>(r);
        gather.push_back(Single(CollectiveKind::kAllgather, "rows", {r, 2}, value));
        spread.push_back(Single(CollectiveKind::kBroadcast, "from last", {7}, value));
        spread.back()->request.root = size - 1;
        barrier.push_back(Bare(CollectiveKind::kBarrier, "all here"));
        for (Calls* calls : {&reduce, &gather, &spread, &barrier}) calls->back()->Start(&job[r]);
      }
      for (int r = 0; r < size; ++r) {
        for (Calls* calls : {&reduce, &gather, &spread, &barrier}) {
          EXPECT_EQ((*calls)[r]->Wait().ToString(), OkStatus().ToString());
        }
        EXPECT_TRUE(AllEqual(reduce[r]->outputs[0], static_cast<float>(size * (size + 1) / 2)));
        EXPECT_TRUE(AllEqual(reduce[r]->outputs[1], static_cast<float>(10 * size)));
        EXPECT_TRUE(AllEqual(spread[r]->outputs[0], static_cast<float>(size - 1)));
        ASSERT_EQ(gather[r]->output_shapes.size(), size_t{1});
        EXPECT_TRUE((gather[r]->output_shapes[0] == Shape{size * (size - 1) / 2, 2}));
        std::vector<float> expected;
        for (int m = 0; m < size; ++m)
          expected.insert(expected.end(), 2 * m, static_cast<float>(m));
        EXPECT_TRUE(gather[r]->outputs[0] == expected);
      }
    }
  }
}

TEST(LargeTensorsGoThroughSmallPipes) {
  for (Link link : kLinks) {
    Job job(3, link);
    Calls calls = RunAll(&job, [](int) { return Allreduce("large", {1 << 20}, 1.5f); });
    for (auto& call : calls) EXPECT_TRUE(AllEqual(call->outputs[0], 4.5f));
    EXPECT_TRUE(job[0].Counters()["bytes_sent"] > 1 << 20);
  }
}

TEST(ADuplicateNameIsRefusedAndTheFirstCallGoesOn) {
  Job job(2, Link::kTcp);
  auto first = Allreduce("twice", {2}, 1.0f);
  auto second = Allreduce("twice", {2}, 1.0f);
  first->Start(&job[0]);
  second->Start(&job[0]);
  Status status = second->Wait();
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), "'twice' is in flight on this rank already");
  EXPECT_TRUE(!first->Ended());
  auto other = Allreduce("twice", {2}, 1.0f);
  other->Start(&job[1]);
  EXPECT_TRUE(first->Wait().ok() && other->Wait().ok());
  // The name is free after the call.
  RunAll(&job, [](int) { return Allreduce("twice", {2}, 1.0f); });
}

// The same name again from inside `done`: it must never be taken for a duplicate.
TEST(DoneMayEnqueueTheSameNameAgain) {
  constexpr int kTimes = 300;
  for (int size : {1, 2}) {
    Job job(size, Link::kTcp);
    struct Chain {
      RankRuntime* rank;
      float in = 1.0f;
      float out = 0.0f;
      int left = kTimes;
      std::promise<Status> ended;
      void Next() {
        Request request;
        request.name = "chain";
        request.shapes = {Shape{1}};
        LocalCall local;
        local.buffers = {{&in, &out, 4, 4}};
        local.done = [this](const Status& status) {
          if (!status.ok() || --left == 0) {
            ended.set_value(status);
          } else {
            Next();
          }
        };
        rank->Enqueue(std::move(request), std::move(local));
      }
    };
    std::vector<Chain> chains(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) {
      chains[r].rank = &job[r];
      chains[r].Next();
    }
    for (Chain& chain : chains) {
      EXPECT_EQ(chain.ended.get_future().get().ToString(), OkStatus().ToString());
      EXPECT_EQ(chain.out, static_cast<float>(size));
    }
  }
}

// Idle means asleep: only heartbeats (none within this test) may wake a thread.
TEST(AnIdleRuntimeDoesNotWake) {
  Config config;
  config.heartbeat_interval = 600 * kSecond;
  config.heartbeat_timeout = 3600 * kSecond;
  Job job(2, Link::kTcp, config);
  RunAll(&job, [](int) { return Allreduce("once", {1}, 1.0f); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto before = job[0].Counters();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  auto after = job[0].Counters();
  for (const char* which : {"control_wakeups", "data_wakeups", "pool_wakeups"}) {
    EXPECT_EQ(after[which], before.at(which));
  }
}

}  // namespace
}  // namespace tfring::collectives_test
