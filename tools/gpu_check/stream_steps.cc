// The steps about what else the GPU does meanwhile: work between start and done, and before an
// abort.

#include <string>
#include <thread>
#include <utility>

#include "tools/gpu_check/bare.h"
#include "tools/gpu_check/pair.h"
#include "tools/gpu_check/steps.h"
#include "tools/gpu_check/two_ranks.h"

namespace tfring::gpu_check {
namespace {

constexpr double kPatience = 10.0;
constexpr double kMemoryLimit = 5.0;

// What a rank of `overlap` measures.
struct Overlapped {
  double spin_ms = 0.0;
  double exchange_ms = 0.0;
  double both_ms = 0.0;
};

class OverlapRank {
 public:
  OverlapRank(const Options& options, Rank self, const TwoSockets& sockets, Phases* phases)
      : self_(self),
        count_(LargestBytes(options) / 8),
        spin_(options.fakes ? 0.002 : 0.01),
        socket_(sockets.checks.ends[self]),
        phases_(phases),
        rank_(options, self, 2, GpuOf(self, options), sockets.runtime.ends[self]) {}

  Overlapped Run() {
    try {
      Begin("loads a kernel");
      rank_.gpu().Spin(spin_);
      CheckSum(count_);
      CheckLatePeer();
      Overlapped found;
      found.spin_ms = TimeOf("a kernel", false, true);
      found.exchange_ms = TimeOf("an exchange", true, false);
      found.both_ms = TimeOf("both", true, true);
      Begin("waits for the other rank's end");
      Meet(socket_);
      Begin("ends its communicator");
      return found;
    } catch (const std::exception& error) {
      Begin(std::string("ends after an error: ") + error.what());
      throw;
    }
  }

 private:
  void Begin(std::string what) { phases_->Begin(self_, std::move(what)); }

  void CheckSum(int64_t count) {
    const std::string sum = "a sum of " + std::to_string(4 * count) + " bytes";
    Begin("fills the memory for " + sum);
    rank_.Fill(count);
    Begin("waits for " + sum);
    Require(rank_.Wait(rank_.Submit(count)).status);
    Begin("looks at " + sum);
    rank_.CheckSums(count);
  }

  // Rank 1 comes when what rank 0 has put on its stream after the start has run.
  void CheckLatePeer() {
    constexpr int64_t kCount = 1000;
    CheckSum(kCount);  // what it allocates might else wait for rank 0's kernel
    rank_.Fill(kCount);
    Begin("waits until rank 0's kernel has run");
    if (self_ == 1) Meet(socket_);
    Begin("waits for the launch of a start");
    const uint64_t sequence = rank_.Submit(kCount, true);
    rank_.WaitLaunched(sequence);
    if (self_ == 0) {
      Begin("gives the GPU a kernel after the start");
      Gpu& gpu = rank_.gpu();
      gpu.Spin(0.001);
      const auto event = Require(gpu.device()->Record(gpu.stream()));
      Begin("waits for the kernel after the start, before the done");
      const double start = Seconds();
      while (gpu.cu().EventQuery(event->get()) == kCudaNotReady) {
        Require(Seconds() - start < kPatience,
                "a kernel after the start, before the done, waits for the other rank");
      }
      Meet(socket_);
    }
    Begin("waits for a done");
    rank_.Follow();
    rank_.CheckSums(kCount);
    Require(rank_.Wait(sequence).status);
  }

  double TimeOf(const std::string& what, bool exchange, bool work) {
    Begin("waits for the other rank, to time " + what);
    Meet(socket_);
    Begin("times " + what);
    uint64_t sequence = 0;
    const double seconds = rank_.gpu().DeviceTimeOf([&] {
      if (exchange) sequence = rank_.Submit(count_, true);
      if (work) rank_.gpu().Spin(spin_);
      if (exchange) rank_.Follow();
    });
    if (exchange) Require(rank_.Wait(sequence).status);
    return seconds * 1e3;
  }

  const Rank self_;
  const int64_t count_;
  const double spin_;
  const int socket_;
  Phases* const phases_;
  GpuRank rank_;
};

}  // namespace

void Overlap(const Options& options, Report* report) {
  const TwoSockets sockets;
  Overlapped found[2];
  {
    Phases phases(options, *report);
    OnThreads(sockets.checks,
              [&](Rank self) { found[self] = OverlapRank(options, self, sockets, &phases).Run(); });
  }
  report->Add("bytes", static_cast<double>(LargestBytes(options) / 2));
  report->Add("spin_ms", found[0].spin_ms);
  report->Add("exchange_ms", found[0].exchange_ms);
  report->Add("both_ms", found[0].both_ms);
}

void AbortQueued(const Options& options, Report* report) {
  const TwoSockets sockets;
  const double before_abort = options.fakes ? 0.1 : 2.0;
  const double queued = options.fakes ? 4.0 : 6.0;  // the runtime's abort gives up after 3 s
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
