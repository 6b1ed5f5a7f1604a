// Kernels of the collectives in which one rank or two are special.

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels/collective_kernel.h"
#include "ops/kernels/splits.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// The world rank; -1 when not initialized, which the runtime finds out as well.
Rank OwnRank() {
  const Result<Topology> topology = ProcessRuntime::Get().topology();
  return topology.ok() ? topology->rank : kNoRank;
}

// TfringReduce: an allreduce whose result is on the root only; the others get zeros. Thread rule
// and lifetime of CollectiveKernel.
class ReduceKernel : public CollectiveKernel {
 public:
  explicit ReduceKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kReduce) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    const absl::Status prepared = PrepareSameShapes(context, &call);
    if (!prepared.ok()) return Refuse(context, std::string(prepared.message()), std::move(done));
    if (OwnRank() != request_.root) {
      call.finish = [outputs = call.entry.buffers] {
        for (const TensorBuffer& buffer : outputs) {
          if (buffer.output_bytes == 0) continue;
          std::memset(buffer.output, 0, static_cast<size_t>(buffer.output_bytes));
        }
        return absl::OkStatus();
      };
    }
    Submit(context, std::move(call), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringReduce").Device(tf::DEVICE_CPU), ReduceKernel);

// TfringScatter: the root's rows, cut into parts. Thread rule and lifetime of CollectiveKernel.
class ScatterKernel : public CollectiveKernel {
 public:
  explicit ScatterKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kScatter) {
    OP_REQUIRES_OK(construction, construction->GetAttr("equal_splits", &equal_splits_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    const tf::Tensor& tensor = context->input(0);
    if (tensor.dims() == 0) return Refuse(context, ScalarRefusal(), std::move(done));
    if (!equal_splits_ && OwnRank() == request_.root) {
      const std::string refusal =
          ReadSplits(context->input(1), tensor.dim_size(0), &call.request.splits);
      if (!refusal.empty()) return Refuse(context, refusal, std::move(done));
    }
    AddInput(context, 0, &call);
    AllocateOutputsLater(context, &call);
    Submit(context, std::move(call), std::move(done));
  }

 private:
  bool equal_splits_ = false;
};
REGISTER_KERNEL_BUILDER(Name("TfringScatter").Device(tf::DEVICE_CPU), ScatterKernel);

// TfringSend: this rank is the root, the receiver the peer. Thread rule and lifetime of
// CollectiveKernel.
class SendKernel : public CollectiveKernel {
 public:
  explicit SendKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kSendRecv) {
    OP_REQUIRES_OK(construction, construction->GetAttr("source", &request_.root));
    OP_REQUIRES_OK(construction, construction->GetAttr("destination", &request_.peer));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    AddInput(context, 0, &call);
    Submit(context, std::move(call), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringSend").Device(tf::DEVICE_CPU), SendKernel);

// TfringRecv: the sender is the root, this rank the peer. Thread rule and lifetime of
// CollectiveKernel.
class RecvKernel : public CollectiveKernel {
 public:
  explicit RecvKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kSendRecv) {
    OP_REQUIRES_OK(construction, construction->GetAttr("source", &request_.root));
    OP_REQUIRES_OK(construction, construction->GetAttr("destination", &request_.peer));
    tf::PartialTensorShape shape;
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape));
    if (shape.unknown_rank()) return;
    const auto sizes = shape.dim_sizes();
    request_.shapes.emplace_back(sizes.begin(), sizes.end());
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    call.entry.buffers.resize(call.request.shapes.size());
    AllocateOutputsLater(context, &call);
    Submit(context, std::move(call), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringRecv").Device(tf::DEVICE_CPU), RecvKernel);

}  // namespace
}  // namespace tfring
