#ifndef TFRING_OPS_GPU_NCCL_NCCL_BACKEND_H_
#define TFRING_OPS_GPU_NCCL_NCCL_BACKEND_H_

#include <memory>

#include "ops/gpu/nccl/nccl_worker.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Runs collectives of the path kDevice with NCCL, or has them staged where the members find, at
// their first collective together, that they cannot use it. Loads nothing before the first Submit.
// Threads and lifetime as CollectiveBackend says; Submit is called from one thread at a time. The
// destructor waits some seconds at most: threads that hang in NCCL are left alone.
class NcclBackend final : public CollectiveBackend {
 public:
  // The sink also gets what the CPU order stages.
  NcclBackend(NcclOptions options, CompletionSink sink);
  ~NcclBackend() override;

  // What a rank can say before the members have met: the rule for DeviceStream::RunsOnDevice.
  static bool Runs(const Config& config, CollectiveKind kind, DataType dtype, ReduceOp op);

  const char* name() const override { return "nccl"; }
  void Submit(Collective collective) override;
  void Disband(const std::vector<Rank>& members) override { worker_->Disband(members); }
  void Abort(Status why) override { worker_->Abort(std::move(why)); }
  int64_t bytes_sent() const override { return worker_->bytes(); }
  int64_t progress() const override { return worker_->progress(); }
  int64_t wakeups() const override { return worker_->wakeups(); }

 private:
  const std::shared_ptr<NcclWorker> worker_;
  bool started_ = false;  // Submit only
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_NCCL_BACKEND_H_
