// Locked schedules on real threads: calls are made by several threads, which take the steps of the
// engine themselves, while the control threads sleep.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::locked_steps_test {
namespace {

struct Traffic {
  std::atomic<int64_t> sends{0};
  std::atomic<int64_t> waits{0};
};

// Counts what goes through it.
class Counting final : public ControlTransport {
 public:
  Counting(std::unique_ptr<ControlTransport> inner, Traffic* traffic)
      : inner_(std::move(inner)), traffic_(traffic) {}
  void Send(Rank to, std::string frame) override {
    ++traffic_->sends;
    inner_->Send(to, std::move(frame));
  }
  void Wait(TimePoint deadline, std::vector<ControlEvent>* events) override {
    ++traffic_->waits;
    inner_->Wait(deadline, events);
  }
  void Wake() override { inner_->Wake(); }
  void Close(TimePoint deadline) override { inner_->Close(deadline); }

 private:
  const std::unique_ptr<ControlTransport> inner_;
  Traffic* const traffic_;
};

Config Locking() {
  Config config;
  config.lock_schedule = true;
  return config;
}

void Round(Job* job, int tensors, float value) {
  for (int t = 0; t < tensors; ++t) {
    const std::string name = "t" + std::to_string(t);
    for (auto& call : RunAll(job, [&](int) { return Allreduce(name, {3}, value); })) {
      EXPECT_TRUE(AllEqual(call->outputs[0], value * static_cast<float>(job->size())));
    }
  }
}

TEST(RoundsNeedNoMessagesAndNoControlThread) {
  for (Link link : {Link::kTcp, Link::kInProcess, Link::kSharedMemory}) {
    Traffic traffic;
    Job job(2, link, Locking(), kNoRank, [&](RankRuntimeParts* parts) {
      parts->control = std::make_unique<Counting>(std::move(parts->control), &traffic);
    });
    for (int i = 0; i < 10; ++i) Round(&job, 2, 1.0f);
    const int64_t sends = traffic.sends;
    const int64_t waits = traffic.waits;
    constexpr int kRounds = 500;
    for (int i = 0; i < kRounds; ++i) Round(&job, 2, static_cast<float>(i));
    // Without a lock each round takes eight of either. Now and then there is a look at the clock,
    // and a busy machine may end a lock once.
    EXPECT_TRUE(traffic.sends - sends < kRounds);
    EXPECT_TRUE(traffic.waits - waits < 2 * kRounds);
  }
}

// One thread per tensor, so that several want to take a step at once. Every so many rounds a tensor
// comes that is not in the lock, and every other time on one rank first.
TEST(ManyThreadsSubmit) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 150;
  constexpr int kOddEvery = 31;
  for (int size : {2, 3, 4}) {
    Job job(size, size == 2 ? Link::kTcp : Link::kSharedMemory, Locking());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&job, rank, t, size] {
          const auto sum = [&](const std::string& name, float value) {
            auto call = Allreduce(name, {64}, value);
            call->Start(&job[rank]);
            EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
            EXPECT_TRUE(AllEqual(call->outputs[0], value * static_cast<float>(size)));
          };
          for (int i = 0; i < kRounds; ++i) {
            sum("thread" + std::to_string(t), static_cast<float>(i + t));
            if (i % kOddEvery == t) sum("odd" + std::to_string(t), static_cast<float>(i));
          }
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// A call that waits in a lock has a time limit also where all control threads slept when it came.
TEST(WhatWaitsForLongEndsTheLock) {
  Config config = Locking();
  config.heartbeat_interval = 0;  // no other reason to wake
  Traffic traffic;
  Job job(2, Link::kTcp, config, kNoRank, [&](RankRuntimeParts* parts) {
    parts->control = std::make_unique<Counting>(std::move(parts->control), &traffic);
  });
  for (int i = 0; i < 10; ++i) Round(&job, 2, 1.0f);
  // The looks that follow a round are over, and the control threads have no deadline.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const int64_t sends = traffic.sends;
  auto call = Allreduce("t0", {3}, 1.0f);
  call->Start(&job[1]);
  for (int i = 0; i < 2000 && traffic.sends == sends; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(traffic.sends > sends);
  auto other = Allreduce("t0", {3}, 2.0f);
  other->Start(&job[0]);
  EXPECT_TRUE(call->Wait().ok() && other->Wait().ok());
  EXPECT_TRUE(AllEqual(call->outputs[0], 3.0f));
}

}  // namespace
}  // namespace tfring::locked_steps_test
