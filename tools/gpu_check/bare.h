#ifndef TFRING_TOOLS_GPU_CHECK_BARE_H_
#define TFRING_TOOLS_GPU_CHECK_BARE_H_

#include <memory>

#include "ops/gpu/nccl/nccl_library.h"
#include "tools/gpu_check/pair.h"

namespace tfring::gpu_check {

// NCCL without the runtime: one communicator of one or two ranks and its allreduces. Failures
// throw.
class Bare {
 public:
  // `blocking`: calls of NCCL return when they are through; otherwise they are asked about, as the
  // runtime does it. `socket` as in SocketOrder.
  Bare(const Options& options, Rank self, int size, int gpu, int socket, bool blocking);
  ~Bare();

  double init_seconds() const { return init_seconds_; }
  // How long an abort takes after an allreduce that the other rank does not join, with so much work
  // before it. Nothing else may be called then.
  double AbortAfter(double queued_seconds);
  // Of `times` allreduces of `count` elements of float32, in place.
  CallTimes TimeOf(int64_t count, int times);

 private:
  void Allreduce(int64_t count);
  void Finish(NcclResult result, const char* what);

  Gpu gpu_;
  const std::shared_ptr<const NcclLibrary> library_;
  char* const memory_;
  double init_seconds_ = 0.0;
  NcclComm comm_ = nullptr;
};

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_BARE_H_
