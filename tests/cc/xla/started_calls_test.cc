// What programs of XLA have started and never asked for: nobody goes on while it uses its memory.
#include "ops/xla/started_calls.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/process/completions.h"
#include "tests/cc/death.h"
#include "tests/cc/process/fake_stream.h"
#include "tests/cc/test.h"

namespace tfring::started_calls_test {
namespace {

struct CountingStream : FakeStream {
  Status WaitForResults() override {
    ++waits;
    return OkStatus();
  }
  std::atomic<int> waits{0};
};

// A collective that ends when the test says so.
struct Collective {
  explicit Collective(uint64_t of_run = 0) : run(of_run) {}

  StartedCall Call() const { return StartedCall("allreduce x", run, stream, launched, unused); }
  void Launch() { outcome.set_value(OkStatus()); }
  void Fail() { outcome.set_value(Aborted("rank 1 failed")); }
  void Release() { released.set_value(); }

  const uint64_t run;
  std::promise<Status> outcome;
  std::promise<void> released;
  std::shared_future<Status> launched = outcome.get_future().share();
  std::shared_future<void> unused = released.get_future().share();
  std::shared_ptr<CountingStream> stream = std::make_shared<CountingStream>();
};

// Its address stands for a stream that no other test uses.
struct Place {
  char byte = 0;
  void* stream() { return &byte; }
};

// Runs `body` on a thread of its own; `ended` tells whether it is over.
class Blocking {
 public:
  explicit Blocking(std::function<void()> body) : future_(std::async(std::launch::async, body)) {}
  bool Blocks() const {
    return future_.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout;
  }
  void Join() { future_.get(); }

 private:
  std::future<void> future_;
};

TEST(AStaleStartIsWaitedForBeforeItsNameIsUsedAgain) {
  Place place;
  Collective stale;
  Collective other;
  Blocking program([&] {
    StartedCalls& calls = StartedCalls::Get();
    calls.Add(place.stream(), 0, "x", stale.Call());
    calls.Add(place.stream(), 0, "y", other.Call());
    calls.AbandonEarlier(place.stream(), 0, "z");  // nothing of that name: the same program goes on
    calls.AbandonEarlier(place.stream(), 0, "x");
    EXPECT_EQ(stale.stream->waits.load(), 1);
    EXPECT_TRUE(calls.Take(place.stream(), 0, "x") == nullptr);
    EXPECT_TRUE(calls.Take(place.stream(), 0, "y") == nullptr);
  });
  EXPECT_TRUE(program.Blocks());
  stale.Launch();
  EXPECT_TRUE(program.Blocks());  // the other start belongs to the program that has failed
  other.Fail();
  EXPECT_TRUE(program.Blocks());
  other.Release();
  program.Join();
}

TEST(TheEndOfARunWaitsForWhatItHasStartedOnAllThreads) {
  Place place;
  Collective of_run[] = {Collective(71), Collective(71)};
  Collective of_another(72);
  StartedCalls& calls = StartedCalls::Get();
  std::thread([&] { calls.Add(place.stream(), 0, "a", of_run[0].Call()); }).join();
  calls.Add(place.stream(), 0, "b", of_run[1].Call());
  calls.Add(place.stream(), 0, "c", of_another.Call());
  Blocking end([] { StepPrograms::Get().WaitForRun(71); });
  of_run[0].Launch();
  EXPECT_TRUE(end.Blocks());
  of_run[1].Fail();
  EXPECT_TRUE(end.Blocks());
  of_run[1].Release();
  end.Join();
  EXPECT_EQ(of_run[0].stream->waits.load(), 1);
  // A program that has not noticed yet finds its call.
  EXPECT_TRUE(calls.Take(place.stream(), 0, "b") != nullptr);
  EXPECT_TRUE(calls.Take(place.stream(), 0, "c") != nullptr);
}

// Where TensorFlow cancels a run in the `done` of a collective, what the run has started waits for
// its own `done`, which comes after that one.
TEST(ADoneDoesNotWaitForTheRun) {
  Place place;
  auto started = std::make_shared<Collective>(73);  // the threads of the pool may outlive the case
  StartedCalls::Get().Add(place.stream(), 0, "x", started->Call());
  ThreadPool pool;
  Completions completions(&pool);
  ASSERT_TRUE(pool.Start(1).ok());
  std::vector<FinishedCall> calls(2);
  auto waited = std::make_shared<std::atomic<bool>>(true);
  calls[0].call.done = [waited](const Status&) { *waited = StepPrograms::Get().WaitForRun(73); };
  calls[1].call.done = [started](const Status&) { started->Launch(); };
  completions.Push(std::move(calls));
  ASSERT_TRUE(completions.Stop(MonotonicNow() + 10 * kSecond));
  EXPECT_TRUE(!*waited);
  EXPECT_TRUE(StepPrograms::Get().WaitForRun(73));
  EXPECT_EQ(started->stream->waits.load(), 1);
  EXPECT_TRUE(pool.Join());
}

TEST(MemoryThatStaysInUseEndsTheProcess) {
  const std::string text = testing::AbortMessage([] {
    Collective lost;
    lost.Call().WaitForMemory(50 * kMillisecond);
  });
  EXPECT_CONTAINS(text, "allreduce x failed, and the GPU still uses its memory 0.05 s later");
  EXPECT_CONTAINS(text, "this process ends");
}

}  // namespace
}  // namespace tfring::started_calls_test
