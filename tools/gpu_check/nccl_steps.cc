// The steps about the NCCL backend with two ranks: values, times, and a rank that does not answer.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "tools/gpu_check/bare.h"
#include "tools/gpu_check/pair.h"
#include "tools/gpu_check/steps.h"
#include "tools/gpu_check/two_ranks.h"

namespace tfring::gpu_check {
namespace {

std::vector<int64_t> Sizes(const Options& options) {
  std::vector<int64_t> sizes;
  const int64_t largest = LargestBytes(options);
  for (int64_t bytes = 4096; bytes <= largest; bytes *= 8) sizes.push_back(bytes);
  if (sizes.back() != largest) sizes.push_back(largest);
  return sizes;
}

int TimesOf(const Options& options, int64_t bytes) {
  if (options.fakes) return 2;
  return bytes < 1 << 24 ? 200 : 10;
}

using Timed = std::function<CallTimes(int64_t count, int times)>;

std::vector<CallTimes> TimeAll(const Options& options, const Timed& timed) {
  std::vector<CallTimes> all;
  for (int64_t bytes : Sizes(options)) all.push_back(timed(bytes / 4, TimesOf(options, bytes)));
  return all;
}

// The runtime and NCCL at its quickest, by the device's clock; and what calls cost the host.
void Compare(const Options& options, const std::vector<CallTimes>& bare,
             const std::vector<CallTimes>& ours, Report* report) {
  const std::vector<int64_t> sizes = Sizes(options);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string bytes = std::to_string(sizes[i]);
    report->Add("bare_us_" + bytes, bare[i].device * 1e6);
    report->Add("over_us_" + bytes, (ours[i].device - bare[i].device) * 1e6);
    report->Add("bare_host_us_" + bytes, bare[i].host * 1e6);
    report->Add("submit_us_" + bytes, ours[i].host * 1e6);
    report->Add("launch_us_" + bytes, ours[i].launched * 1e6);
  }
}

// Values of both ranks, with every kind of collective and every size.
void CheckValues(const Options& options, GpuRank* rank, Report* report) {
  const int kinds = rank->CheckKinds();
  if (rank->self() == 0) report->Add("kinds", kinds);
  for (int64_t bytes : Sizes(options)) {
    if (bytes <= 64 << 20) rank->CheckSum(bytes / 4 + 1);
  }
}

}  // namespace

void Processes(const Options& options, Report* report) {
  const TwoSockets sockets;
  OnProcesses(sockets, [&](Rank self) {
    GpuRank rank(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]);
    CheckValues(options, &rank, report);
    Meet(sockets.checks.ends[self]);  // both have all results before either ends its communicator
  });
}

void Threads(const Options& options, Report* report) {
  const TwoSockets sockets;
  OnThreads(sockets.checks, [&](Rank self) {
    const int socket = sockets.checks.ends[self];
    std::vector<CallTimes> ours;
    {
      GpuRank rank(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]);
      CheckValues(options, &rank, report);
      ours = TimeAll(options, [&](int64_t count, int times) { return rank.TimeOf(count, times); });
      Meet(socket);
    }
    Bare bare(options, self, 2, GpuOf(self, options), socket, true);
    const std::vector<CallTimes> direct =
        TimeAll(options, [&](int64_t count, int times) { return bare.TimeOf(count, times); });
    Meet(socket);
    if (self == 0) Compare(options, direct, ours, report);
  });
}

void Launch(const Options& options, Report* report) {
  const TwoSockets sockets;
  const int times = options.fakes ? 2 : 500;
  OnThreads(sockets.checks, [&](Rank self) {
    const int socket = sockets.checks.ends[self];
    const auto time = [&](const std::string& name, const Timed& timed) {
      for (int64_t bytes : {int64_t{1} << 12, int64_t{1} << (options.fakes ? 16 : 20)}) {
        const CallTimes found = timed(bytes / 4, times);
        if (self != 0) continue;
        report->Add(name + "_host_us_" + std::to_string(bytes), found.launched * 1e6);
        report->Add(name + "_us_" + std::to_string(bytes), found.device * 1e6);
      }
      Meet(socket);
    };
    for (const bool blocking : {true, false}) {
      Bare bare(options, self, 2, GpuOf(self, options), socket, blocking);
      const std::string name = blocking ? "blocking" : "nonblocking";
      if (self == 0) report->Add(name + "_init_seconds", bare.init_seconds());
      time(name, [&](int64_t count, int n) { return bare.TimeOf(count, n); });
    }
    GpuRank rank(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]);
    time("tfring", [&](int64_t count, int n) { return rank.TimeOf(count, n); });
  });
}

void Hang(const Options& options, Report* report) {
  const TwoSockets sockets;
  auto ending = std::make_unique<std::promise<void>>();
  const std::future<void> ended = ending->get_future();
  OnThreads(sockets.checks, [&](Rank self) {
    GpuRank rank(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]);
    rank.CheckSum(1000);
    // Rank 1 keeps its communicator until rank 0 is through: rank 0's kernel writes to its memory.
    if (self == 1) return ended.wait();
    const auto rank_1_waits = std::move(ending);  // until it is destroyed
    const uint64_t sequence = rank.Submit(1 << 16);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double start = Seconds();
    rank.Abort(Aborted("the check ends what waits in vain"));
    const Completion completion = rank.Wait(sequence);
    report->Add("seconds_to_error", Seconds() - start);
    report->Add("message", completion.status.ToString());
    Require(!completion.status.ok(), "an allreduce with nobody ended well");
    rank.CheckGpu();
  });
}

void Death(const Options& options, Report* report) {
  const Sockets sockets;
  const pid_t child = Fork([&] {
    GpuRank rank(options, 1, 2, GpuOf(1, options), sockets.ends[1]);
    rank.CheckSum(1000);
    close(sockets.ends[0]);
    const char ready = 1;
    Require(send(sockets.ends[1], &ready, 1, MSG_NOSIGNAL) == 1, "rank 0 is gone");
    pause();
  });
  close(sockets.ends[1]);
  GpuRank rank(options, 0, 2, 0, sockets.ends[0]);
  rank.CheckSum(1000);
  char byte = 0;
  Require(recv(sockets.ends[0], &byte, 1, 0) == 1, "rank 1 is gone too early");
  const uint64_t sequence = rank.Submit(1 << 16);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double start = Seconds();
  kill(child, SIGKILL);
  // The runtime sees the end of a connection; here it is the socket's.
  std::thread watch([&] {
    if (recv(sockets.ends[0], &byte, 1, 0) <= 0) rank.Abort(Unavailable("rank 1 was lost"));
  });
  const Completion completion = rank.Wait(sequence);
  report->Add("seconds_to_error", Seconds() - start);
  report->Add("message", completion.status.ToString());
  watch.join();
  waitpid(child, nullptr, 0);
  Require(!completion.status.ok(), "an allreduce with a dead rank ended well");
  Require(Seconds() - start < 5.0, "the error took more than 5 s");
  rank.CheckGpu();
}

}  // namespace tfring::gpu_check
