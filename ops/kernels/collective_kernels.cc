// One kernel class for each way to prepare a collective. kernel_base.h explains the common part.

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/kernels/kernel_base.h"
#include "ops/kernels/registration.h"
#include "ops/runtime/base/export.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Returns the world rank; kNoRank before init, and then Enqueue refuses the call.
Rank OwnRank() {
  const Result<Topology> topology = ProcessRuntime::Get().topology();
  return topology.ok() ? topology->rank : kNoRank;
}

// TfringAllreduce and TfringBroadcast: the outputs have the shapes of the inputs.
template <CollectiveKind kind>
class SameShapeKernel : public CollectiveKernel {
 public:
  explicit SameShapeKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, kind) {}

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    return PrepareSameShapes(context, call);
  }
};

// TfringReduce: an allreduce whose result is on the root only; the other ranks get zeros. On the
// CPU `finish` zeroes the outputs. A device gets its work in advance, so there the zeros are
// separate.
class ReduceKernel : public SameShapeKernel<CollectiveKind::kReduce> {
 public:
  using SameShapeKernel::SameShapeKernel;

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    const bool root = OwnRank() == request().root;
    if (on_device() && !root) return PrepareZeros(context, call);
    TF_RETURN_IF_ERROR(SameShapeKernel::Prepare(context, call));
    if (root) return absl::OkStatus();
    call->finish = [outputs = call->local.buffers] {
      for (const TensorBuffer& buffer : outputs) {
        if (buffer.output_bytes == 0) continue;
        std::memset(buffer.output, 0, static_cast<size_t>(buffer.output_bytes));
      }
      return absl::OkStatus();
    };
    return absl::OkStatus();
  }
};

// TfringAllgather, TfringGather and TfringReducescatter: an output has the trailing dimensions of
// its input and a different number of rows.
template <CollectiveKind kind>
class RowsKernel : public CollectiveKernel {
 public:
  explicit RowsKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, kind) {}

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    for (int i = 0; i < context->num_outputs(); ++i) AddInput(context, i, call);
    AllocateOutputsLater(context, call);
    return absl::OkStatus();
  }
};

// Reads from an int32 or int64 tensor how many rows go to each rank. InvalidArgument if it is not a
// vector. The runtime checks the numbers (CheckContent).
absl::Status ReadSplits(const tf::Tensor& tensor, std::vector<int64_t>* splits) {
  if (tensor.dims() != 1) {
    return absl::InvalidArgumentError(
        "splits have to be a vector with one number of rows per rank, not of shape " +
        tensor.shape().DebugString());
  }
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    splits->push_back(tensor.dtype() == tf::DT_INT32
                          ? static_cast<const int32_t*>(tensor.data())[i]
                          : static_cast<const int64_t*>(tensor.data())[i]);
  }
  return absl::OkStatus();
}

// Writes numbers of rows to an int32 or int64 output.
absl::Status WriteSplits(tf::OpKernelContext* context, int output,
                         const std::vector<int64_t>& rows) {
  tf::Tensor* written = nullptr;
  const tf::TensorShape shape({static_cast<int64_t>(rows.size())});
  TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &written));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (written->dtype() == tf::DT_INT64) {
      static_cast<int64_t*>(written->data())[i] = rows[i];
    } else if (rows[i] <= INT32_MAX) {
      static_cast<int32_t*>(written->data())[i] = static_cast<int32_t>(rows[i]);
    } else {
      return absl::InvalidArgumentError(std::to_string(rows[i]) +
                                        " rows came from one rank: pass the splits as int64");
    }
  }
  return absl::OkStatus();
}

// TfringScatter and the sending half of TfringAlltoall: splits the rows of its input into one part
// per rank. The second input holds the sizes.
template <CollectiveKind kind>
class SplitRowsKernel : public CollectiveKernel {
 public:
  explicit SplitRowsKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, kind) {
    OP_REQUIRES_OK(construction, construction->GetAttr("equal_splits", &equal_splits_));
  }

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    AddInput(context, 0, call);
    const bool cuts = kind == CollectiveKind::kAlltoall || OwnRank() == request().root;
    if (cuts && !equal_splits_) {
      TF_RETURN_IF_ERROR(ReadSplits(context->input(1), &call->request.splits));
    }
    AllocateOutputsLater(context, call);
    return absl::OkStatus();
  }

 private:
  bool equal_splits_ = false;
};

// TfringAlltoall: also returns how many rows came from each rank.
class AlltoallKernel : public SplitRowsKernel<CollectiveKind::kAlltoall> {
 public:
  using SplitRowsKernel::SplitRowsKernel;

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    TF_RETURN_IF_ERROR(SplitRowsKernel::Prepare(context, call));
    const auto rows = std::make_shared<std::vector<int64_t>>();
    call->local.announce = [rows](const std::vector<int64_t>& values) { *rows = values; };
    call->finish = [context, rows] { return WriteSplits(context, 1, *rows); };
    return absl::OkStatus();
  }
};

// TfringSend: the op's attribute `source`, this rank, is the root; `destination` is the peer.
class SendKernel : public CollectiveKernel {
 public:
  explicit SendKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kSendRecv) {}

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    AddInput(context, 0, call);
    return absl::OkStatus();
  }
};

// TfringRecv: the op's attribute `source` is the root of the request; `destination`, this rank, is
// the peer. The attribute `shape` may be unknown, wholly or in part.
class RecvKernel : public CollectiveKernel {
 public:
  explicit RecvKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kSendRecv) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape_));
  }

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    if (!shape_.unknown_rank()) {
      const auto sizes = shape_.dim_sizes();
      call->request.shapes.emplace_back(sizes.begin(), sizes.end());
      call->local.buffers.resize(1);
    }
    AllocateOutputsLater(context, call);
    return absl::OkStatus();
  }

 private:
  tf::PartialTensorShape shape_;
};

// TfringBarrier: no tensors.
class BarrierKernel : public CollectiveKernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kBarrier) {}

 protected:
  absl::Status Prepare(tf::OpKernelContext*, KernelCall*) const override {
    return absl::OkStatus();
  }
};

// Counts how often all ranks of each process set have joined since the library was loaded.
// Thread-safe; never destroyed.
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
    return counts_[id];
  }

 private:
  std::mutex mutex_;  // guards counts_
  std::map<ProcessSetId, int64_t> counts_;
};

// TfringJoin: returns the rank that joined last.
class JoinKernel : public CollectiveKernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kJoin) {}

 protected:
  absl::Status Prepare(tf::OpKernelContext* context, KernelCall* call) const override {
    tf::Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tf::TensorShape({}), &output));
    int32_t* const last_rank = static_cast<int32_t*>(output->data());
    *last_rank = kNoRank;
    call->local.announce = [last_rank](const std::vector<int64_t>& values) {
      if (!values.empty()) *last_rank = static_cast<int32_t>(values[0]);
    };
    call->finish = [id = request().process_set] {
      JoinCounts::Get().Add(id);
      return absl::OkStatus();
    };
    return absl::OkStatus();
  }
};

TFRING_REGISTER_KERNEL("TfringAllreduce", SameShapeKernel<CollectiveKind::kAllreduce>);
TFRING_REGISTER_KERNEL("TfringBroadcast", SameShapeKernel<CollectiveKind::kBroadcast>);
TFRING_REGISTER_KERNEL("TfringReduce", ReduceKernel);
TFRING_REGISTER_KERNEL("TfringAllgather", RowsKernel<CollectiveKind::kAllgather>);
TFRING_REGISTER_KERNEL("TfringGather", RowsKernel<CollectiveKind::kGather>);
TFRING_REGISTER_KERNEL("TfringReducescatter", RowsKernel<CollectiveKind::kReducescatter>);
TFRING_REGISTER_KERNEL("TfringScatter", SplitRowsKernel<CollectiveKind::kScatter>);
TFRING_REGISTER_KERNEL("TfringAlltoall", AlltoallKernel);
TFRING_REGISTER_KERNEL("TfringSend", SendKernel);
TFRING_REGISTER_KERNEL("TfringRecv", RecvKernel);
TFRING_REGISTER_KERNEL("TfringBarrier", BarrierKernel);
TFRING_REGISTER_KERNEL("TfringJoin", JoinKernel);

}  // namespace
}  // namespace tfring

// For the counters of default names. Python calls it through ctypes.
extern "C" TFRING_EXPORT int64_t TfringJoins(int32_t process_set_id) {
  return tfring::JoinCounts::Get().Read(process_set_id);
}
