#ifndef TFRING_TOOLS_GPU_CHECK_PAIR_H_
#define TFRING_TOOLS_GPU_CHECK_PAIR_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/gpu/cuda/stream.h"
#include "ops/gpu/nccl/nccl_backend.h"
#include "ops/runtime/interfaces/cpu_order.h"
#include "tests/cc/gpu/nccl/jobs.h"
#include "tools/gpu_check/gpu.h"

namespace tfring::gpu_check {

// Whole messages over a socket; false if the other end is gone.
bool SendAll(int socket, const void* data, size_t bytes);
bool ReceiveAll(int socket, void* data, size_t bytes);

// Carries the meeting before a communicator over one socket between two ranks, or to nobody, where
// the runtime has its CPU backend. What would be staged ends with an error.
class SocketOrder final : public CpuOrder {
 public:
  // `socket` -1: this rank is alone.
  SocketOrder(int socket, CompletionSink sink) : socket_(socket), sink_(std::move(sink)) {}
  ~SocketOrder() override;

  std::unique_ptr<CpuPlace> Reserve() override;

 private:
  class Place;
  void Exchange(const Collective& collective, const std::function<void(Completion)>& ended);

  const int socket_;
  const CompletionSink sink_;
  std::vector<std::thread> threads_;  // of the launch thread
};

// Seconds of one of many calls that follow each other.
struct CallTimes {
  double device = 0.0;    // on the device's clock, from before the first to after the last
  double host = 0.0;      // until the caller has made it
  double launched = 0.0;  // until the device has been given it
};

// A rank with an NcclBackend on a GPU, all of its tensors in one piece of memory: freeing some can
// wait for the whole GPU, and so for a rank that waits for this one. Failures throw.
class GpuRank {
 public:
  // `socket` as in SocketOrder.
  GpuRank(const Options& options, Rank self, int size, int gpu, int socket);
  ~GpuRank();

  Rank self() const { return self_; }

  // Sums `count` elements of float32 in place, after what is on the GPU's stream now.
  uint64_t Submit(int64_t count, bool early = false);
  Completion Wait(uint64_t sequence);
  void WaitLaunched(uint64_t sequence);
  // Of the last call, an early one: waits for its launch, then lets the GPU's stream wait for its
  // results.
  void Follow();
  // Whether the runtime has let go of the memory of the last call.
  bool released() const { return last_call_.expired(); }
  Gpu& gpu() { return gpu_; }
  // Has r + 1 in `count` elements of rank r, and looks at every sum.
  void Fill(int64_t count);
  void CheckSums(int64_t count);
  void Abort(Status why) { backend_->Abort(std::move(why)); }
  // One allreduce of `count` elements.
  void CheckSum(int64_t count);
  // Fails if an error has ended the context of the GPU, which the whole process shares.
  void CheckGpu() { gpu_.Upload(memory_, std::vector<char>(1)); }
  // Every kind of collective with every dtype and op against the CPU backend. Returns how many.
  int CheckKinds();
  // Of `times` allreduces of `count` elements.
  CallTimes TimeOf(int64_t count, int times);

 private:
  void CheckJob(const testing::Job& job);
  char* Place(const std::vector<char>& bytes, int64_t* used);
  void Ended(Completion completion);
  uint64_t SubmitOnDevice(Collective collective, bool early);

  const Rank self_;
  const int size_;
  Gpu gpu_;
  const bool packs_;  // this GPU has pack kernels
  const int64_t memory_bytes_;
  char* const memory_;
  SocketOrder order_;
  uint64_t sequence_ = 0;
  std::shared_ptr<CudaStream> last_stream_;
  std::weak_ptr<void> last_call_;
  std::mutex mutex_;  // guards the two below
  std::condition_variable changed_;
  uint64_t launched_ = 0;
  std::map<uint64_t, Completion> ended_;
  std::unique_ptr<NcclBackend> backend_;
};

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_PAIR_H_
