// When and where `done` runs, and what it holds up.
#include "ops/runtime/process/completions.h"

#include <cfenv>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "tests/cc/process/fixture.h"
#include "tests/cc/process/held_backend.h"
#include "tests/cc/test.h"

namespace tfring::completions_test {
namespace {

std::vector<FinishedCall> Finished(std::function<void()> done) {
  std::vector<FinishedCall> calls(1);
  calls[0].call.done = [done = std::move(done)](const Status&) { done(); };
  return calls;
}

// The first at least, and the others on a thread of the pool, in their order.
TEST(ACallerWhoseTimeIsOverLeavesDonesToThePool) {
  ThreadPool pool;
  Completions completions(&pool);
  ASSERT_TRUE(pool.Start(2).ok());
  const std::thread::id self = std::this_thread::get_id();
  bool first_here = false;
  for (int attempt = 0; attempt < 5000 && !first_here; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the pool's threads sleep
    std::vector<std::thread::id> ran_on;
    std::vector<FinishedCall> calls;
    std::promise<void> ended;
    for (int i = 0; i < 4; ++i) {
      auto call = Finished([&, i] {
        EXPECT_EQ(ran_on.size(), static_cast<size_t>(i));
        ran_on.push_back(std::this_thread::get_id());
        if (i == 3) ended.set_value();
      });
      calls.push_back(std::move(call[0]));
    }
    {
      ThreadPool::CallerRuns caller(&pool);
      completions.Push(std::move(calls));
      caller.RunTasks(1);
    }
    ended.get_future().get();
    first_here = ran_on[0] == self;
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(ran_on[i] != self);
  }
  EXPECT_TRUE(first_here);
  EXPECT_TRUE(completions.Stop(kNever));
  EXPECT_TRUE(pool.Join());
}

TEST(ADoneLeavesTheArithmeticOfItsThreadAsItWas) {
  ThreadPool pool;
  Completions completions(&pool);
  ASSERT_TRUE(pool.Start(1).ok());
  for (int i = 0; i < 2; ++i) {
    std::promise<int> rounding;
    completions.Push(Finished([&] {
      const int found = std::fegetround();
      std::fesetround(FE_UPWARD);
      rounding.set_value(found);
    }));
    EXPECT_EQ(rounding.get_future().get(), FE_TONEAREST);
  }
  EXPECT_TRUE(completions.Stop(kNever));
  EXPECT_TRUE(pool.Join());
}

TEST(TheEndOfAPlanWakesRank0OnlyIfAnotherWaitsForIt) {
  InProcessControlHub hub(1);
  HeldBackend* backend = nullptr;
  RankRuntimeParts parts;
  parts.engine.config.heartbeat_interval = 600 * kSecond;
  parts.engine.config.heartbeat_timeout = 3600 * kSecond;
  parts.engine.config.max_plans_in_flight = 1;
  parts.control = hub.Endpoint(0);
  parts.make_backend = [&backend](CompletionSink sink, ThreadPool*) {
    auto made = std::make_unique<HeldBackend>(std::move(sink));
    backend = made.get();
    return made;
  };
  auto rank = RankRuntime::Start(std::move(parts));
  ASSERT_TRUE(rank.ok());
  const auto settle = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  const auto begin = [&](const std::string& name) {
    auto call = Allreduce(name, {4}, 1.0f);
    call->Start(rank->get());
    settle();
    return call;
  };
  auto alone = begin("alone");
  EXPECT_EQ(backend->submitted(), 1);
  const int64_t before = (*rank)->Counters()["control_wakeups"];
  backend->End(OkStatus());
  EXPECT_TRUE(alone->Wait().ok());
  settle();
  EXPECT_EQ((*rank)->Counters()["control_wakeups"], before);
  const auto await_plans = [&](int count) {
    const TimePoint limit = MonotonicNow() + 30 * kSecond;
    while (backend->submitted() < count && MonotonicNow() < limit) std::this_thread::yield();
    EXPECT_EQ(backend->submitted(), count);
  };
  auto first = begin("first");
  await_plans(2);  // before the second call, or one plan would run both
  auto second = begin("second");
  EXPECT_EQ(backend->submitted(), 2);
  backend->End(OkStatus());
  EXPECT_TRUE(first->Wait().ok());
  await_plans(3);
  backend->End(OkStatus());
  EXPECT_TRUE(second->Wait().ok());
}

}  // namespace
}  // namespace tfring::completions_test
