// The steps about the NCCL backend: alone, with two ranks, and when a rank does not answer.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "ops/runtime/backend/nccl/nccl_library.h"
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

// The calls of NCCL itself, on one rank.
class Bare {
 public:
  explicit Bare(const Options& options) : gpu_(options, 0) {
    library_ = Require(LoadNccl(options.nccl));
    NcclConfig config;
    config.blocking = 1;
    const NcclUniqueId id = Require(MakeNcclUniqueId(library_, 30 * kSecond));
    Check(library_->call.CommInitRankConfig(&comm_, 1, id, 0, &config), "making a communicator");
  }
  ~Bare() { library_->call.CommDestroy(comm_); }

  double TimeOf(int64_t count, int times) {
    char* memory = gpu_.Allocate(4 * count);
    const double seconds = gpu_.TimeOf(times, [&] {
      Check(library_->call.AllReduce(memory, memory, static_cast<size_t>(count),
                                     static_cast<int>(NcclType::kFloat32),
                                     static_cast<int>(NcclOp::kSum), comm_, gpu_.stream()),
            "an allreduce");
    });
    gpu_.Free(memory);
    return seconds;
  }

 private:
  void Check(NcclResult result, const char* what) {
    Require(NcclStatus(*library_, result, what, comm_));
  }

  Gpu gpu_;
  std::shared_ptr<const NcclLibrary> library_;
  NcclComm comm_ = nullptr;
};

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

void CheckAndTime(GpuRank* rank, const Options& options, Report* report) {
  for (int64_t bytes : Sizes(options)) {
    if (bytes <= 64 << 20) rank->CheckSum(bytes / 4 + 1);
  }
  for (int64_t bytes : Sizes(options)) {
    const double seconds = rank->TimeOf(bytes / 4, TimesOf(options, bytes));
    if (report != nullptr) report->Add("us_" + std::to_string(bytes), seconds * 1e6);
  }
}

}  // namespace

void OneRank(const Options& options, Report* report) {
  Bare bare(options);
  GpuRank rank(options, 0, 1, 0, -1);
  rank.CheckSum(1000);
  for (int64_t bytes : Sizes(options)) {
    const int times = TimesOf(options, bytes);
    const double direct = bare.TimeOf(bytes / 4, times);
    const double ours = rank.TimeOf(bytes / 4, times);
    report->Add("bare_us_" + std::to_string(bytes), direct * 1e6);
    report->Add("over_us_" + std::to_string(bytes), (ours - direct) * 1e6);
  }
}

void Threads(const Options& options, Report* report) {
  const Sockets sockets;
  OnThreads([&](Rank self) {
    GpuRank rank(options, self, 2, self == 0 ? 0 : Second(options), sockets.ends[self]);
    CheckAndTime(&rank, options, self == 0 ? report : nullptr);
  });
}

void Processes(const Options& options, Report* report) {
  const Sockets sockets;
  const pid_t child = Fork([&] {
    GpuRank rank(options, 1, 2, Second(options), sockets.ends[1]);
    CheckAndTime(&rank, options, nullptr);
  });
  {
    GpuRank rank(options, 0, 2, 0, sockets.ends[0]);
    CheckAndTime(&rank, options, report);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Require(status == 0, "rank 1 failed");
}

void Hang(const Options& options, Report* report) {
  const Sockets sockets;
  OnThreads([&](Rank self) {
    GpuRank rank(options, self, 2, self == 0 ? 0 : Second(options), sockets.ends[self]);
    rank.CheckSum(1000);
    if (self == 1) return;  // and so leaves rank 0 alone
    const uint64_t sequence = rank.Submit(1 << 16);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double start = Seconds();
    rank.Abort(Aborted("the check ends what waits in vain"));
    const Completion completion = rank.Wait(sequence);
    report->Add("seconds_to_error", Seconds() - start);
    report->Add("message", completion.status.ToString());
    Require(!completion.status.ok(), "an allreduce with nobody ended well");
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
}

}  // namespace tfring::gpu_check
