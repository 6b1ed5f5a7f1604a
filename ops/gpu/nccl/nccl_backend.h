#ifndef TFRING_OPS_GPU_NCCL_NCCL_BACKEND_H_
#define TFRING_OPS_GPU_NCCL_NCCL_BACKEND_H_

#include <memory>

#include "ops/gpu/nccl/nccl_worker.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Runs collectives of the path kDevice with NCCL. If the members find at their first common
// collective that they cannot use NCCL, their collectives are staged. Loads nothing before the
// first Submit. Threads and lifetime as CollectiveBackend says; call Submit from one thread at a
// time. The destructor waits a few seconds at most, and leaves threads that hang in NCCL behind.
class NcclBackend final : public CollectiveBackend {
 public:
  // The sink also gets the completions of staged collectives.
  NcclBackend(NcclOptions options, CompletionSink sink);
  ~NcclBackend() override;

  // The answer of a rank before the members have met: the rule for DeviceStream::RunsOnDevice.
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
