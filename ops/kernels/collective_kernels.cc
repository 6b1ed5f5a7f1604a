#include <atomic>
#include <charconv>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels/conversions.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/engine/process_runtime.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Outputs that took over their input's buffer, and outputs that needed memory of their own.
std::atomic<int64_t> forwarded_outputs{0};
std::atomic<int64_t> allocated_outputs{0};

absl::Status ToRuntimeType(tf::DataType type, DataType* out) {
  switch (type) {
    case tf::DT_BOOL:
      *out = DataType::kBool;
      break;
    case tf::DT_UINT8:
      *out = DataType::kUint8;
      break;
    case tf::DT_INT8:
      *out = DataType::kInt8;
      break;
    case tf::DT_UINT16:
      *out = DataType::kUint16;
      break;
    case tf::DT_INT16:
      *out = DataType::kInt16;
      break;
    case tf::DT_UINT32:
      *out = DataType::kUint32;
      break;
    case tf::DT_INT32:
      *out = DataType::kInt32;
      break;
    case tf::DT_UINT64:
      *out = DataType::kUint64;
      break;
    case tf::DT_INT64:
      *out = DataType::kInt64;
      break;
    case tf::DT_HALF:
      *out = DataType::kFloat16;
      break;
    case tf::DT_BFLOAT16:
      *out = DataType::kBfloat16;
      break;
    case tf::DT_FLOAT:
      *out = DataType::kFloat32;
      break;
    case tf::DT_DOUBLE:
      *out = DataType::kFloat64;
      break;
    case tf::DT_COMPLEX64:
      *out = DataType::kComplex64;
      break;
    case tf::DT_COMPLEX128:
      *out = DataType::kComplex128;
      break;
    default:
      return absl::InvalidArgumentError("dtype " + tf::DataTypeString(type) + " is not supported");
  }
  return absl::OkStatus();
}

Shape ToRuntimeShape(const tf::TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return Shape(sizes.begin(), sizes.end());
}

int64_t Bytes(const tf::Tensor& tensor) { return static_cast<int64_t>(tensor.TotalBytes()); }

// What all collective kernels share: a Request that is known but for the shapes, and the way of a
// call through the runtime. One instance per node, used by several executor threads at once:
// constant after construction. Outlives its calls, as TensorFlow keeps kernels until then.
class CollectiveKernel : public tf::AsyncOpKernel {
 public:
  CollectiveKernel(tf::OpKernelConstruction* construction, CollectiveKind kind)
      : AsyncOpKernel(construction) {
    request_.kind = kind;
    tf::DataType type;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type));
    OP_REQUIRES_OK(construction, ToRuntimeType(type, &request_.dtype));
    OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &request_.name));
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &request_.process_set));
  }

  // The call only leaves a message, so the executor may make it at once on its own thread.
  bool IsExpensive() override { return false; }

 protected:
  // Tensors that must outlive the call; shared with the runtime's callbacks.
  using Kept = std::shared_ptr<std::vector<tf::Tensor>>;

  // Outputs have the inputs' shapes and, where nobody else reads an input, its buffer.
  absl::Status PrepareSameShapes(tf::OpKernelContext* context, Request* request, Entry* entry,
                                 const Kept& kept) const {
    const int count = context->num_outputs();
    // Forwarding needs an input that is referenced once: all of them first, and only then the
    // references that keep the other inputs alive.
    std::vector<tf::Tensor*> outputs(count, nullptr);
    for (int i = 0; i < count; ++i) {
      const tf::TensorShape shape = context->input(i).shape();
      request->shapes.push_back(ToRuntimeShape(shape));
      int from = -1;
      TF_RETURN_IF_ERROR(
          context->forward_input_or_allocate_output({i}, i, shape, &outputs[i], &from));
      (from >= 0 ? forwarded_outputs : allocated_outputs).fetch_add(1, std::memory_order_relaxed);
      const tf::Tensor& input = from >= 0 ? *outputs[i] : context->input(i);
      entry->buffers.push_back(
          {input.data(), outputs[i]->data(), Bytes(input), Bytes(*outputs[i])});
    }
    for (int i = 0; i < count; ++i) {
      if (entry->buffers[i].input != outputs[i]->data()) kept->push_back(context->input(i));
    }
    return absl::OkStatus();
  }

  static void Submit(tf::OpKernelContext* context, Request request, Entry entry, Kept kept,
                     DoneCallback done) {
    entry.done = [context, kept = std::move(kept), done = std::move(done)](const Status& status) {
      if (!status.ok()) context->SetStatus(ToAbsl(status));
      // After done() the step may go on: an input that we still held could not be forwarded.
      kept->clear();
      done();
    };
    ProcessRuntime::Get().Enqueue(std::move(request), std::move(entry));
  }

  Request request_;
};

// Shares the flow of allreduce and broadcast, whose outputs look like their inputs. Thread rule and
// lifetime of CollectiveKernel.
class SameShapeKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    Request request = request_;
    Entry entry;
    auto kept = std::make_shared<std::vector<tf::Tensor>>();
    OP_REQUIRES_OK_ASYNC(context, PrepareSameShapes(context, &request, &entry, kept), done);
    Submit(context, std::move(request), std::move(entry), std::move(kept), std::move(done));
  }
};

// TfringAllreduce. Thread rule and lifetime of CollectiveKernel.
class AllreduceKernel : public SameShapeKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* construction)
      : SameShapeKernel(construction, CollectiveKind::kAllreduce) {
    int reduce_op = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &reduce_op));
    OP_REQUIRES(construction, reduce_op >= 0 && reduce_op < kNumReduceOps,
                absl::InvalidArgumentError("tensor " + request_.name + ": reduce_op must be 0 to " +
                                           std::to_string(kNumReduceOps - 1) + ", not " +
                                           std::to_string(reduce_op)));
    request_.op = static_cast<ReduceOp>(reduce_op);
    OP_REQUIRES_OK(construction, GetFactor(construction, "prescale_factor", &request_.prescale));
    OP_REQUIRES_OK(construction, GetFactor(construction, "postscale_factor", &request_.postscale));
    int64_t layout_hash = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("layout_hash", &layout_hash));
    request_.layout_hash = static_cast<uint64_t>(layout_hash);
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &request_.group));
  }

 private:
  absl::Status GetFactor(tf::OpKernelConstruction* construction, const char* attribute,
                         double* factor) {
    std::string text;
    TF_RETURN_IF_ERROR(construction->GetAttr(attribute, &text));
    const char* end = text.data() + text.size();
    const std::from_chars_result parsed = std::from_chars(text.data(), end, *factor);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return absl::InvalidArgumentError("tensor " + request_.name + ": " + attribute + " is '" +
                                        text + "', not a number");
    }
    return absl::OkStatus();
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringAllreduce").Device(tf::DEVICE_CPU), AllreduceKernel);

// TfringBroadcast. Thread rule and lifetime of CollectiveKernel.
class BroadcastKernel : public SameShapeKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* construction)
      : SameShapeKernel(construction, CollectiveKind::kBroadcast) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root_rank", &request_.root));
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringBroadcast").Device(tf::DEVICE_CPU), BroadcastKernel);

// TfringAllgather. Thread rule and lifetime of CollectiveKernel.
class AllgatherKernel : public CollectiveKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, CollectiveKind::kAllgather) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    Request request = request_;
    const tf::Tensor& input = context->input(0);
    OP_REQUIRES_ASYNC(context, input.dims() >= 1,
                      absl::InvalidArgumentError(
                          "tensor " + request.name +
                          ": an allgather concatenates along the first dimension, but this tensor "
                          "is a scalar; reshape it to [1]"),
                      done);
    request.shapes.push_back(ToRuntimeShape(input.shape()));
    Entry entry;
    entry.buffers.push_back({input.data(), nullptr, Bytes(input), 0});
    entry.allocate = [context](int, const Shape& shape) { return Allocate(context, shape); };
    auto kept = std::make_shared<std::vector<tf::Tensor>>(1, input);
    Submit(context, std::move(request), std::move(entry), std::move(kept), std::move(done));
  }

 private:
  static Result<void*> Allocate(tf::OpKernelContext* context, const Shape& shape) {
    tf::TensorShape output_shape;
    tf::Tensor* output = nullptr;
    absl::Status status = tf::TensorShape::BuildTensorShape(shape, &output_shape);
    if (status.ok()) status = context->allocate_output(0, output_shape, &output);
    if (!status.ok()) return Internal(std::string(status.message()));
    allocated_outputs.fetch_add(1, std::memory_order_relaxed);
    return output->data();
  }
};
REGISTER_KERNEL_BUILDER(Name("TfringAllgather").Device(tf::DEVICE_CPU), AllgatherKernel);

}  // namespace
}  // namespace tfring

// For metrics and tests, through ctypes.
extern "C" TFRING_EXPORT int64_t TfringForwardedOutputs() {
  return tfring::forwarded_outputs.load(std::memory_order_relaxed);
}
extern "C" TFRING_EXPORT int64_t TfringAllocatedOutputs() {
  return tfring::allocated_outputs.load(std::memory_order_relaxed);
}
