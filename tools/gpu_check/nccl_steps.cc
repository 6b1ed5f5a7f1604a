// The steps about the NCCL backend: alone, with two ranks, and when a rank does not answer.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <future>
#include <thread>

#include "tools/gpu_check/bare.h"
#include "tools/gpu_check/pair.h"
#include "tools/gpu_check/steps.h"

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
  if (options.doubles) return 2;
  return bytes < 1 << 24 ? 200 : 10;
}

struct Sockets {
  Sockets() { Require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no socket pair"); }
  int ends[2];
};

// Runs `rank` as two threads; the first error of either.
void OnThreads(const std::function<void(Rank)>& rank) {
  std::exception_ptr errors[2];
  const auto run = [&](Rank self) {
    try {
      rank(self);
    } catch (...) {
      errors[self] = std::current_exception();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Starts rank 1 as a process of its own, before this one has used the driver.
pid_t Fork(const std::function<void()>& rank) {
  const pid_t child = fork();
  Require(child >= 0, "no process");
  if (child > 0) return child;
  int code = 0;
  try {
    rank();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank 1: %s\n", error.what());
    code = 1;
  }
  _exit(code);
}

// The GPU of rank 1: another one if there is one.
int Second(const Options& options) { return Gpu::Count(options) > 1 ? 1 : 0; }

using Timed = std::function<CallTimes(int64_t count, int times)>;

std::vector<CallTimes> TimeAll(const Options& options, const Timed& timed) {
  std::vector<CallTimes> all;
  for (int64_t bytes : Sizes(options)) all.push_back(timed(bytes / 4, TimesOf(options, bytes)));
  return all;
}

// The runtime and NCCL in the same mode, by the device's clock; and what calls cost the host.
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

// Returns when the other rank is there, too.
void Meet(int socket) {
  char byte = 0;
  Require(SendAll(socket, &byte, 1) && ReceiveAll(socket, &byte, 1), "the other rank is gone");
}

// Of two ranks: one for the runtime, one for what else they tell each other.
struct TwoSockets {
  Sockets runtime;
  Sockets checks;

  // Of two processes, each keeps its own ends: so it sees that the other is gone.
  void Keep(Rank self) const {
    close(runtime.ends[1 - self]);
    close(checks.ends[1 - self]);
  }
};

// What both of two ranks do. `report` may be null.
void CheckAndTime(const Options& options, Rank self, const TwoSockets& sockets, Report* report) {
  const int gpu = self == 0 ? 0 : Second(options);
  const int socket = sockets.checks.ends[self];
  std::vector<CallTimes> ours;
  {
    GpuRank rank(options, self, 2, gpu, sockets.runtime.ends[self]);
    const int kinds = rank.CheckKinds();
    if (report != nullptr) report->Add("kinds", kinds);
    for (int64_t bytes : Sizes(options)) {
      if (bytes <= 64 << 20) rank.CheckSum(bytes / 4 + 1);
    }
    ours = TimeAll(options, [&](int64_t count, int times) { return rank.TimeOf(count, times); });
    Meet(socket);  // both have all results before either ends its communicator
  }
  Bare bare(options, self, 2, gpu, socket, false);
  const std::vector<CallTimes> direct =
      TimeAll(options, [&](int64_t count, int times) { return bare.TimeOf(count, times); });
  Meet(socket);
  if (report != nullptr) Compare(options, direct, ours, report);
}

}  // namespace

void OneRank(const Options& options, Report* report) {
  std::vector<CallTimes> direct[2];
  for (const bool blocking : {false, true}) {
    Bare bare(options, 0, 1, 0, -1, blocking);
    direct[blocking] =
        TimeAll(options, [&](int64_t count, int times) { return bare.TimeOf(count, times); });
    const std::string mode = blocking ? "blocking" : "nonblocking";
    report->Add("init_seconds_" + mode, bare.init_seconds());
    report->Add("host_us_" + mode, direct[blocking].front().host * 1e6);
  }
  GpuRank rank(options, 0, 1, 0, -1);
  report->Add("kinds", rank.CheckKinds());
  const std::vector<CallTimes> ours =
      TimeAll(options, [&](int64_t count, int times) { return rank.TimeOf(count, times); });
  Compare(options, direct[0], ours, report);
}

void Threads(const Options& options, Report* report) {
  const TwoSockets sockets;
  OnThreads([&](Rank self) { CheckAndTime(options, self, sockets, self == 0 ? report : nullptr); });
}

void Processes(const Options& options, Report* report) {
  const TwoSockets sockets;
  const pid_t child = Fork([&] {
    sockets.Keep(1);
    CheckAndTime(options, 1, sockets, nullptr);
  });
  sockets.Keep(0);
  CheckAndTime(options, 0, sockets, report);
  int status = 0;
  waitpid(child, &status, 0);
  Require(status == 0, "rank 1 failed");
}

void Hang(const Options& options, Report* report) {
  const Sockets sockets;
  auto ending = std::make_unique<std::promise<void>>();
  const std::future<void> ended = ending->get_future();
  OnThreads([&](Rank self) {
    GpuRank rank(options, self, 2, self == 0 ? 0 : Second(options), sockets.ends[self]);
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
    GpuRank rank(options, 1, 2, Second(options), sockets.ends[1]);
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
