#include "ops/gpu/nccl/nccl_backend.h"

#include <utility>

namespace tfring {

NcclBackend::NcclBackend(NcclOptions options, CompletionSink sink)
    : worker_(std::make_shared<NcclWorker>(std::move(options), std::move(sink))) {}

NcclBackend::~NcclBackend() { worker_->Close(); }

bool NcclBackend::Runs(const Config& config, CollectiveKind kind, DataType dtype, ReduceOp op) {
  return config.gpu_operations != GpuOperations::kHost && NcclRuns(kind, dtype, op);
}

void NcclBackend::Submit(Collective collective) {
  if (!started_) {
    const Status status = worker_->Start();
    if (!status.ok()) worker_->Abort(status);
    started_ = true;
  }
  worker_->Submit(std::move(collective));
}

}  // namespace tfring
