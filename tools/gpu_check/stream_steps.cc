// The steps about what else the GPU does meanwhile: work between start and done, and before an
// abort.

#include <thread>

#include "tools/gpu_check/bare.h"
#include "tools/gpu_check/pair.h"
#include "tools/gpu_check/steps.h"
#include "tools/gpu_check/two_ranks.h"

namespace tfring::gpu_check {
namespace {

constexpr double kPatience = 10.0;
constexpr double kMemoryLimit = 5.0;

// Rank 1 comes when what rank 0 has put on its stream after the start has run.
void CheckLatePeer(GpuRank* rank, int socket) {
  constexpr int64_t kCount = 1000;
  rank->CheckSum(kCount);  // what it allocates might else wait for rank 0's kernel
  rank->Fill(kCount);
  if (rank->self() == 1) Meet(socket);
  const uint64_t sequence = rank->Submit(kCount, true);
  rank->WaitLaunched(sequence);
  if (rank->self() == 0) {
    Gpu& gpu = rank->gpu();
    gpu.Spin(0.001);
    const auto event = Require(gpu.device()->Record(gpu.stream()));
    const double start = Seconds();
    while (gpu.cu().EventQuery(event->get()) == kCudaNotReady) {
      Require(Seconds() - start < kPatience,
              "a kernel after the start, before the done, waits for the other rank");
    }
    Meet(socket);
  }
  rank->Follow();
  rank->CheckSums(kCount);
  Require(rank->Wait(sequence).status);
}

}  // namespace

void Overlap(const Options& options, Report* report) {
  const TwoSockets sockets;
  const int64_t count = LargestBytes(options) / 8;
  const double spin = options.doubles ? 0.002 : 0.01;
  OnThreads(sockets.checks, [&](Rank self) {
    const int socket = sockets.checks.ends[self];
    GpuRank rank(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]);
    rank.gpu().Spin(spin);  // loads the kernel
    rank.CheckSum(count);
    CheckLatePeer(&rank, socket);
    const auto time = [&](bool exchange, bool work) {
      Meet(socket);
      uint64_t sequence = 0;
      const double seconds = rank.gpu().DeviceTimeOf([&] {
        if (exchange) sequence = rank.Submit(count, true);
        if (work) rank.gpu().Spin(spin);
        if (exchange) rank.Follow();
      });
      if (exchange) Require(rank.Wait(sequence).status);
      return seconds * 1e3;
    };
    const double spin_ms = time(false, true);
    const double exchange_ms = time(true, false);
    const double both_ms = time(true, true);
    Meet(socket);
    if (self != 0) return;
    report->Add("bytes", static_cast<double>(4 * count));
    report->Add("spin_ms", spin_ms);
    report->Add("exchange_ms", exchange_ms);
    report->Add("both_ms", both_ms);
  });
}

void AbortQueued(const Options& options, Report* report) {
  const TwoSockets sockets;
  const double before_abort = options.doubles ? 0.1 : 2.0;
  const double queued = options.doubles ? 4.0 : 6.0;  // the runtime's abort gives up after 3 s
  OnProcesses(sockets, [&](Rank self) {
    const int socket = sockets.checks.ends[self];
    {
      Bare bare(options, self, 2, GpuOf(self, options), socket, false);
      bare.TimeOf(1 << 16, 1);
      if (self == 1) Meet(socket);  // it is there while rank 0 aborts
      const double seconds = bare.AbortAfter(self == 0 ? before_abort : 0.0);
      if (self == 0) {
        report->Add("nccl_queued_seconds", before_abort);
        report->Add("nccl_abort_seconds", seconds);
        Meet(socket);
      }
    }
    GpuRank rank(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]);
    rank.CheckSum(1 << 16);
    if (self == 1) return Meet(socket);
    rank.gpu().Spin(queued);
    const uint64_t sequence = rank.Submit(1 << 16);
    rank.WaitLaunched(sequence);
    const double start = Seconds();
    rank.Abort(Aborted("the check ends what waits in vain"));
    const Completion completion = rank.Wait(sequence);
    report->Add("queued_seconds", queued);
    report->Add("seconds_to_error", Seconds() - start);
    report->Add("message", completion.status.ToString());
    Require(!completion.status.ok(), "an allreduce with nobody ended well");
    rank.CheckGpu();  // after all that was queued
    const double works = Seconds();
    report->Add("gpu_seconds", works - start);
    // The runtime asks the device at least every 100 ms.
    while (!rank.released()) {
      Require(Seconds() - works < kMemoryLimit,
              "the runtime still keeps the memory 5 s after all that was queued has run");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    report->Add("memory_seconds", Seconds() - works);
    Meet(socket);
  });
}

}  // namespace tfring::gpu_check
