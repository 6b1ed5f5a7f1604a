// Kernels of the collectives that every rank calls in the same way.

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels/collective_kernel.h"
#include "ops/kernels/splits.h"
#include "ops/runtime/base/export.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// TfringAllreduce and TfringBroadcast, whose outputs look like their inputs. Thread rule and
// lifetime of CollectiveKernel.
template <CollectiveKind kind>
class SameShapeKernel : public CollectiveKernel {
 public:
  explicit SameShapeKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, kind) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    // Without memory for an output: the other ranks must not wait for this one.
    const absl::Status prepared = PrepareSameShapes(context, &call);
    if (!prepared.ok()) return Refuse(context, std::string(prepared.message()), std::move(done));
    Submit(context, std::move(call), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringAllreduce").Device(tf::DEVICE_CPU),
                        SameShapeKernel<CollectiveKind::kAllreduce>);
REGISTER_KERNEL_BUILDER(Name("TfringBroadcast").Device(tf::DEVICE_CPU),
                        SameShapeKernel<CollectiveKind::kBroadcast>);

// TfringAllgather, TfringGather and TfringReducescatter: tensors with rows, whose outputs have
// other numbers of rows. Thread rule and lifetime of CollectiveKernel.
template <CollectiveKind kind>
class RowsKernel : public CollectiveKernel {
 public:
  explicit RowsKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, kind) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    for (int i = 0; i < context->num_outputs(); ++i) {
      if (context->input(i).dims() == 0) return Refuse(context, ScalarRefusal(), std::move(done));
      AddInput(context, i, &call);
    }
    AllocateOutputsLater(context, &call);
    Submit(context, std::move(call), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringAllgather").Device(tf::DEVICE_CPU),
                        RowsKernel<CollectiveKind::kAllgather>);
REGISTER_KERNEL_BUILDER(Name("TfringGather").Device(tf::DEVICE_CPU),
                        RowsKernel<CollectiveKind::kGather>);
REGISTER_KERNEL_BUILDER(Name("TfringReducescatter").Device(tf::DEVICE_CPU),
                        RowsKernel<CollectiveKind::kReducescatter>);

// TfringAlltoall: rows for every rank, and how many came from each. Thread rule and lifetime of
// CollectiveKernel.
class AlltoallKernel : public CollectiveKernel {
 public:
  explicit AlltoallKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kAlltoall) {
    OP_REQUIRES_OK(construction, construction->GetAttr("equal_splits", &equal_splits_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    KernelCall call = NewCall();
    const tf::Tensor& tensor = context->input(0);
    if (tensor.dims() == 0) return Refuse(context, ScalarRefusal(), std::move(done));
    if (!equal_splits_) {
      const std::string refusal =
          ReadSplits(context->input(1), tensor.dim_size(0), &call.request.splits);
      if (!refusal.empty()) return Refuse(context, refusal, std::move(done));
    }
    AddInput(context, 0, &call);
    AllocateOutputsLater(context, &call);
    const auto rows = std::make_shared<std::vector<int64_t>>();
    call.entry.announce = [rows](const std::vector<int64_t>& values) { *rows = values; };
    call.finish = [context, rows] { return WriteSplits(context, 1, *rows); };
    Submit(context, std::move(call), std::move(done));
  }

 private:
  bool equal_splits_ = false;
};
REGISTER_KERNEL_BUILDER(Name("TfringAlltoall").Device(tf::DEVICE_CPU), AlltoallKernel);

// TfringBarrier. Thread rule and lifetime of CollectiveKernel.
class BarrierKernel : public CollectiveKernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kBarrier) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    Submit(context, NewCall(), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringBarrier").Device(tf::DEVICE_CPU), BarrierKernel);

// How often all ranks of a process set have joined, in this process. Thread-safe; never destroyed.
class JoinCounts {
 public:
  static JoinCounts& Get() {
    static JoinCounts* const counts = new JoinCounts();
    return *counts;
  }
  void Add(ProcessSetId id) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[id];
  }
  int64_t Read(ProcessSetId id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = counts_.find(id);
    return it == counts_.end() ? 0 : it->second;
  }

 private:
  std::mutex mutex_;  // guards counts_
  std::map<ProcessSetId, int64_t> counts_;
};

// TfringJoin. Thread rule and lifetime of CollectiveKernel.
class JoinKernel : public CollectiveKernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kJoin) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    tf::Tensor* last = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, tf::TensorShape({}), &last), done);
    int32_t* const rank = static_cast<int32_t*>(last->data());
    *rank = kNoRank;
    KernelCall call = NewCall();
    call.entry.announce = [rank](const std::vector<int64_t>& values) {
      if (!values.empty()) *rank = static_cast<int32_t>(values[0]);
    };
    call.finish = [id = request_.process_set] {
      JoinCounts::Get().Add(id);
      return absl::OkStatus();
    };
    Submit(context, std::move(call), std::move(done));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringJoin").Device(tf::DEVICE_CPU), JoinKernel);

}  // namespace
}  // namespace tfring

// For the counters of default names, through ctypes: how often the process set has joined.
extern "C" TFRING_EXPORT int64_t TfringJoins(int32_t process_set_id) {
  return tfring::JoinCounts::Get().Read(process_set_id);
}
