#ifndef TFRING_TOOLS_GPU_CHECK_PAIR_H_
#define TFRING_TOOLS_GPU_CHECK_PAIR_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/runtime/backend/cuda/stream.h"
#include "ops/runtime/backend/nccl/nccl_backend.h"
#include "ops/runtime/interfaces/host_order.h"
#include "tools/gpu_check/gpu.h"

namespace tfring::gpu_check {

// Carries the meeting before a communicator over one socket between two ranks, or to nobody, where
// the runtime has its CPU backend. Nothing can be staged.
class SocketOrder final : public HostOrder {
 public:
  explicit SocketOrder(int socket) : socket_(socket) {}  // -1: this rank is alone
  ~SocketOrder() override;

  std::unique_ptr<HostPlace> Reserve() override;

 private:
  class Place;
  void Exchange(const Collective& collective, const std::function<void(Completion)>& ended);

  const int socket_;
  std::vector<std::thread> threads_;  // of the launch thread
};

// A rank with an NcclBackend on a GPU, and its allreduces of float32. Failures throw.
class GpuRank {
 public:
  // `socket` as in SocketOrder.
  GpuRank(const Options& options, Rank self, int size, int gpu, int socket);
  ~GpuRank();

  Gpu& gpu() { return gpu_; }
  // Sums `count` elements in place.
  uint64_t Submit(char* memory, int64_t count);
  Completion Wait(uint64_t sequence);
  void Abort(Status why) { backend_->Abort(std::move(why)); }
  // One allreduce of `count` elements, in which rank r has r + 1, and a look at every sum.
  void CheckSum(int64_t count);
  // Seconds of one of `times` allreduces that follow each other.
  double TimeOf(int64_t count, int times);

 private:
  const Rank self_;
  const int size_;
  Gpu gpu_;
  SocketOrder order_;
  uint64_t sequence_ = 0;
  std::mutex mutex_;  // guards ended_
  std::condition_variable changed_;
  std::map<uint64_t, Completion> ended_;
  std::unique_ptr<NcclBackend> backend_;
};

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_PAIR_H_
