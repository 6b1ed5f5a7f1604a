#include "tools/gpu_check/bare.h"

#include <utility>

namespace tfring::gpu_check {

Bare::Bare(const Options& options, Rank self, int size, int gpu, int socket, bool blocking)
    : gpu_(options, gpu),
      library_(Require(LoadNccl(options.nccl))),
      memory_(gpu_.Allocate(LargestBytes(options))) {
  NcclUniqueId id = {};
  if (self == 0) id = Require(MakeNcclUniqueId(library_, 30 * kSecond));
  const bool shared = size == 1 || (self == 0 ? SendAll(socket, &id, sizeof(id))
                                              : ReceiveAll(socket, &id, sizeof(id)));
  Require(shared, "the other rank is gone");
  NcclConfig config;
  config.blocking = blocking ? 1 : 0;
  const double start = Seconds();
  Finish(library_->call.CommInitRankConfig(&comm_, size, id, self, &config),
         "making a communicator");
  init_seconds_ = Seconds() - start;
}

Bare::~Bare() {
  if (comm_ == nullptr) return;  // aborted; the memory goes with the process
  NcclResult state = library_->call.CommFinalize(comm_);
  while (state == NcclResult::kInProgress) {
    if (library_->call.CommGetAsyncError(comm_, &state) != NcclResult::kSuccess) break;
  }
  library_->call.CommDestroy(comm_);
  (void)gpu_.cu().MemFree(reinterpret_cast<CuDevicePtr>(memory_));
}

void Bare::Finish(NcclResult result, const char* what) {
  while (result == NcclResult::kInProgress) {
    Require(NcclStatus(*library_, library_->call.CommGetAsyncError(comm_, &result), what, comm_));
  }
  Require(NcclStatus(*library_, result, what, comm_));
}

void Bare::Allreduce(int64_t count) {
  const NcclFunctions& nccl = library_->call;
  Require(NcclStatus(*library_, nccl.GroupStart(), "a group", comm_));
  Require(NcclStatus(*library_,
                     nccl.AllReduce(memory_, memory_, static_cast<size_t>(count),
                                    static_cast<int>(NcclType::kFloat32),
                                    static_cast<int>(NcclOp::kSum), comm_, gpu_.stream()),
                     "an allreduce", comm_));
  Finish(nccl.GroupEnd(), "an allreduce");
}

double Bare::AbortAfter(double queued_seconds) {
  if (queued_seconds > 0) {
    gpu_.Spin(queued_seconds);
    Allreduce(1 << 16);
  }
  const double start = Seconds();
  library_->call.CommAbort(std::exchange(comm_, nullptr));
  return Seconds() - start;
}

CallTimes Bare::TimeOf(int64_t count, int times) {
  gpu_.Upload(memory_, std::vector<char>(static_cast<size_t>(4 * count)));
  Allreduce(count);
  gpu_.Wait();
  CallTimes result;
  result.device = gpu_.DeviceTimeOf([&] {
    const double start = Seconds();
    for (int i = 0; i < times; ++i) Allreduce(count);
    result.host = result.launched = (Seconds() - start) / times;
  });
  result.device /= times;
  return result;
}

}  // namespace tfring::gpu_check
