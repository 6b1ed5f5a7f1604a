// A rank that abandons its generation: what becomes of its calls, and of those of the others.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::abandon_test {
namespace {

// Counts the runtimes that have ended after Abandon.
struct Gone {
  std::function<void()> Told() {
    return [this] {
      std::lock_guard<std::mutex> lock(mutex);
      ++count;
      changed.notify_all();
    };
  }
  bool WaitFor(int wanted) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), [&] { return count >= wanted; });
  }
  std::mutex mutex;  // guards count
  std::condition_variable changed;
  int count = 0;
};

const Status kWhy = Unavailable("the generation is over: rank 7 was lost");
const Status kLater = FailedPrecondition("the generation is over, call init() first");

TEST(WaitingAndLaterCallsEndAndTheOthersNameTheRank) {
  Gone gone;
  Job job(3, Link::kTcp);
  RunAll(&job, [](int) { return Allreduce("works", {16}, 1.0f); });
  Calls waiting =
      StartAll(&job, [](int r) { return r == 2 ? nullptr : Allreduce("never", {4}, 1.0f); });
  EXPECT_TRUE(job[1].Abandon(kWhy, kLater, gone.Told()));
  EXPECT_TRUE(!job[1].Abandon(Aborted("a second time"), Aborted("a second time"), gone.Told()));
  EXPECT_EQ(waiting[1]->Wait().ToString(), kWhy.ToString());
  auto late = Allreduce("late", {4}, 1.0f);
  late->Start(&job[1]);
  EXPECT_EQ(late->Wait().ToString(), kLater.ToString());
  const Status other = waiting[0]->Wait();
  EXPECT_TRUE(other.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(other.message(), "rank 1 (host host1) was lost");
  EXPECT_TRUE(job[0].health()->lost == std::vector<Rank>{1});
  EXPECT_TRUE(gone.WaitFor(1));
  job[1].Shutdown();  // does nothing
  EXPECT_EQ(gone.count, 1);
  std::vector<std::string> warnings;
  EXPECT_TRUE(job[1].warning_event()->Wait(0, &warnings) == WarningEvent::Outcome::kEnd);
}

// Runs nothing, and lets go of a collective that was aborted only when it is told to.
class StubbornBackend final : public CollectiveBackend {
 public:
  StubbornBackend(CompletionSink sink, std::shared_future<void> let_go)
      : sink_(std::move(sink)), let_go_(std::move(let_go)) {}
  ~StubbornBackend() override { Abort(Cancelled("closed")); }
  const char* name() const override { return "stubborn"; }
  void Submit(Collective collective) override { held_.push_back(collective.sequence); }
  void Abort(Status why) override {
    let_go_.wait();
    for (uint64_t sequence : std::exchange(held_, {})) sink_({sequence, why, kNoRank});
  }
  int64_t bytes_sent() const override { return 0; }
  int64_t wakeups() const override { return 0; }

 private:
  const CompletionSink sink_;
  const std::shared_future<void> let_go_;
  std::vector<uint64_t> held_;  // control thread only
};

TEST(ACallWhoseBuffersAreInUseEndsWhenTheyAreNot) {
  std::promise<void> let_go;
  Gone gone;
  {
    Job job(1, Link::kInProcess, Config(), kNoRank,
            [future = let_go.get_future().share()](RankRuntimeParts* parts) {
              parts->make_backend = [future](CompletionSink sink, ThreadPool*) {
                return std::make_unique<StubbornBackend>(std::move(sink), future);
              };
            });
    auto running = Allreduce("running", {4}, 1.0f);
    running->Start(&job[0]);
    while (job[0].Counters()["plans"] == 0) std::this_thread::yield();
    job[0].Abandon(kWhy, kLater, gone.Told());  // does not wait
    EXPECT_TRUE(!running->Ended());
    EXPECT_EQ(gone.count, 0);
    let_go.set_value();
    EXPECT_EQ(running->Wait().ToString(), kWhy.ToString());
  }
  EXPECT_TRUE(gone.WaitFor(1));
}

}  // namespace
}  // namespace tfring::abandon_test
