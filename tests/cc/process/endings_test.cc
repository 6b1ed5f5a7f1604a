// How a runtime ends: shutdown with work in flight, lost peers, and nothing left behind.
#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/process/held_backend.h"
#include "tests/cc/test.h"

namespace tfring::endings_test {
namespace {

using Clock = std::chrono::steady_clock;

int EntriesOf(const char* folder) {
  int count = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

void RunOnce(Job* job, const std::string& name) {
  RunAll(job, [&](int) { return Allreduce(name, {16}, 1.0f); });
}

// On a rank that has nothing else to do, the end of the last plan is what lets it go.
TEST(AShutdownGoesOnWhenTheLastPlanHasEnded) {
  InProcessControlHub hub(2);
  HeldBackend* backends[2] = {nullptr, nullptr};
  std::unique_ptr<RankRuntime> ranks[2];
  for (int r = 0; r < 2; ++r) {
    RankRuntimeParts parts;
    parts.engine.rank = r;
    parts.engine.size = 2;
    parts.control = hub.Endpoint(r);
    parts.make_backend = [&backends, r](CompletionSink sink, ThreadPool*) {
      auto backend = std::make_unique<HeldBackend>(std::move(sink));
      backends[r] = backend.get();
      return backend;
    };
    auto started = RankRuntime::Start(std::move(parts));
    ASSERT_TRUE(started.ok());
    ranks[r] = std::move(*started);
  }
  Calls calls;
  for (auto& rank : ranks) {
    calls.push_back(Allreduce("last", {4}, 1.0f));
    calls.back()->Start(rank.get());
  }
  while (backends[0]->submitted() == 0 || backends[1]->submitted() == 0) std::this_thread::yield();
  auto leaving = std::async(std::launch::async, [&] { ranks[1]->Shutdown(); });
  // Long enough for the control thread to fall asleep again; an early end would pass unnoticed.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  backends[1]->End(OkStatus());
  // Without being woken it would sleep until the drain limit of two seconds.
  EXPECT_TRUE(leaving.wait_for(std::chrono::seconds(1)) == std::future_status::ready);
  backends[0]->End(OkStatus());
  for (auto& call : calls) EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
  leaving.wait();
  ranks[0]->Shutdown();
}

// Also in the middle of a transfer, when a data stream may break before the control connection.
TEST(ALostPeerIsNamedEverywhere) {
  for (int victim = 0; victim < 3; ++victim) {
    for (bool in_the_middle : {false, true}) {
      Job job(3, Link::kTcp, Config(), in_the_middle ? kNoRank : victim);
      if (in_the_middle) RunOnce(&job, "works");
      Calls pending;
      for (int r = 0; r < 3; ++r) {
        if (r == victim && !in_the_middle) continue;
        pending.push_back(Allreduce("hopeless", {2 << 20}, 1.0f));
        pending.back()->Start(&job[r]);
      }
      while (in_the_middle && job[victim].Counters()["plans"] < 2) std::this_thread::yield();
      const auto cut = Clock::now();
      job.Cut(victim);
      const std::string name = "rank " + std::to_string(victim) + " (host host";
      for (size_t i = 0; i < pending.size(); ++i) {
        Status status = pending[i]->Wait();
        if (in_the_middle && status.ok()) continue;  // it was through already
        EXPECT_TRUE(status.code() == StatusCode::kUnavailable);
        // The victim itself lives on here and sees all others vanish; as rank 0 it may even tell
        // one of them before its last connection is cut.
        const bool certain = !in_the_middle || (victim != 0 && static_cast<int>(i) != victim);
        if (certain) EXPECT_CONTAINS(status.message(), name);
      }
      EXPECT_TRUE(Clock::now() - cut < std::chrono::seconds(10));  // "within 1 s", on slow machines
      for (int r = 0; r < 3; ++r) {
        if (r == victim) continue;
        auto later = Allreduce("later", {1}, 1.0f);
        later->Start(&job[r]);
        EXPECT_TRUE(later->Wait().code() == StatusCode::kUnavailable);
      }
    }
  }
}

TEST(ALostPeerSignalsTheEventAndItsErrorHasTheNote) {
  Job job(2, Link::kTcp);
  RunOnce(&job, "works");
  job[0].NoteErrors("`look` says more.", "Nobody stalls.");
  auto hopeless = Allreduce("hopeless", {4}, 1.0f);
  hopeless->Start(&job[0]);
  job.Cut(1);
  const Status status = hopeless->Wait();
  EXPECT_TRUE(status.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), ". `look` says more.");
  std::vector<std::string> warnings;
  EXPECT_TRUE(job[0].warning_event()->Wait(60 * kSecond, &warnings) ==
              WarningEvent::Outcome::kWarning);
}

TEST(CyclesLeaveNoDescriptorAndNoThread) {
  {
    Job warm_up(2, Link::kTcp);
    RunOnce(&warm_up, "x");
  }
  const int fds = EntriesOf("/proc/self/fd");
  const int threads = EntriesOf("/proc/self/task");
  for (int i = 0; i < 10; ++i) {
    Job job(3, i % 2 == 0 ? Link::kTcp : Link::kUnix);
    RunOnce(&job, "x");
    if (i % 3 == 0) job.Cut(1);
  }
  EXPECT_EQ(EntriesOf("/proc/self/fd"), fds);
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads);
}

// A backend that cannot be made must not leave threads or accept calls.
TEST(AFailedStartIsAnErrorAndLeavesNothing) {
  const int threads = EntriesOf("/proc/self/task");
  RankRuntimeParts parts;
  InProcessControlHub hub(1);
  parts.control = hub.Endpoint(0);
  parts.make_backend = [](CompletionSink, ThreadPool*) -> std::unique_ptr<CollectiveBackend> {
    throw std::runtime_error("no backend for test");
  };
  auto started = RankRuntime::Start(std::move(parts));
  ASSERT_TRUE(!started.ok());
  EXPECT_CONTAINS(started.status().message(), "no backend for test");
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads);
}

}  // namespace
}  // namespace tfring::endings_test
