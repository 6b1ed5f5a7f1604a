// Ranks in threads of their own, which really sleep.
#include "ops/runtime/backend/arena/arena_runner.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/base/clock.h"
#include "tests/cc/backend/arena/fake_host_memory.h"
#include "tests/cc/backend/arena/random_plans.h"
#include "tests/cc/test.h"

namespace tfring::testing::arena_runner_test {
namespace {

// The memory of the ranks of a host in one process, at one address for all, so that the thread
// sanitizer sees who reads what.
class ThreadHost {
 public:
  explicit ThreadHost(int size) : parts_(size), beds_(size) {
    for (Rank rank = 0; rank < size; ++rank) {
      ranks_.push_back(rank);
      ends_.push_back(std::make_unique<End>(this, rank));
    }
  }

  HostMemory* Of(Rank rank) { return ends_[rank].get(); }

 private:
  struct Bed {
    std::mutex mutex;  // guards both below
    std::condition_variable woken;
    bool asleep = false;
    Rank awaited = kNoRank;
  };

  class End final : public HostMemory {
   public:
    End(ThreadHost* host, Rank self) : host_(host), self_(self) {}
    const std::vector<Rank>& ranks() const override { return host_->ranks_; }
    char* PartOf(Rank rank) const override { return host_->parts_[rank].memory(); }
    void Notify(Rank rank) override {
      Bed& bed = host_->beds_[rank];
      std::lock_guard<std::mutex> lock(bed.mutex);
      if (bed.asleep && (bed.awaited == kNoRank || bed.awaited == self_)) bed.woken.notify_all();
    }
    void Sleep(Rank awaited, const std::function<bool()>& ready, TimePoint) override {
      Bed& bed = host_->beds_[self_];
      std::unique_lock<std::mutex> lock(bed.mutex);
      bed.asleep = true;
      bed.awaited = awaited;
      if (!ready()) bed.woken.wait(lock);
      bed.asleep = false;
    }
    bool Closed(Rank) const override { return false; }

   private:
    ThreadHost* const host_;
    const Rank self_;
  };

  std::vector<Rank> ranks_;
  std::vector<HostPart> parts_;
  std::vector<Bed> beds_;
  std::vector<std::unique_ptr<End>> ends_;
};

// All kinds, whole batches of locks, and batches that not all members enter.
TEST(ThreadsThatSleepGetWhatRandomCollectivesGive) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    Random random(seed);
    const int size = 2 + static_cast<int>(seed % 3);
    ThreadHost host(size);
    std::vector<std::unique_ptr<RandomPlan>> plans;
    for (int number = 0; number < 40; ++number) {
      plans.push_back(std::make_unique<RandomPlan>(size, 10 + number, number % 8 == 0, &random));
    }
    std::mutex mutex;  // guards found
    std::string found;
    const auto run = [&](Rank rank) {
      std::atomic<bool> poison{false};
      ArenaRunner runner(host.Of(rank), rank, &poison);
      for (const auto& plan : plans) {
        const std::vector<Rank>& members = plan->members();
        const auto it = std::find(members.begin(), members.end(), rank);
        if (it == members.end()) continue;
        const int member = static_cast<int>(it - members.begin());
        const Collective& part = plan->part(member);
        const bool runs = ArenaCollective::Runs(part);
        runner.Start(part, runs ? ResolveReduction(part) : Reduction());
        // Every other plan is begun by a caller, which may or may not get through.
        Result<bool> ended = false;
        if (part.sequence % 2 == 0) ended = runner.Run(MonotonicNow() + kMillisecond / 20);
        if (ended.ok() && !*ended) ended = runner.Run(kNever);
        std::string wrong =
            ended.ok() ? plan->Wrong(member, plan->recalled() || !runs) : ended.status().ToString();
        if (runner.recalled() != plan->recalled()) wrong += " recalled";
        if (wrong.empty()) continue;
        std::lock_guard<std::mutex> lock(mutex);
        found += "rank " + std::to_string(rank) + ", plan " + std::to_string(part.sequence) + ": " +
                 wrong + "; ";
      }
    };
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(found, std::string());
  }
}

}  // namespace
}  // namespace tfring::testing::arena_runner_test
