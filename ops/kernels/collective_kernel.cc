#include "ops/kernels/collective_kernel.h"

#include <charconv>
#include <utility>

#include "ops/runtime/base/export.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

absl::Status ToRuntimeType(tf::DataType type, DataType* out) {
  static constexpr struct {
    tf::DataType tensorflow;
    DataType runtime;
  } kTypes[] = {
      {tf::DT_BOOL, DataType::kBool},
      {tf::DT_UINT8, DataType::kUint8},
      {tf::DT_INT8, DataType::kInt8},
      {tf::DT_UINT16, DataType::kUint16},
      {tf::DT_INT16, DataType::kInt16},
      {tf::DT_UINT32, DataType::kUint32},
      {tf::DT_INT32, DataType::kInt32},
      {tf::DT_UINT64, DataType::kUint64},
      {tf::DT_INT64, DataType::kInt64},
      {tf::DT_HALF, DataType::kFloat16},
      {tf::DT_BFLOAT16, DataType::kBfloat16},
      {tf::DT_FLOAT, DataType::kFloat32},
      {tf::DT_DOUBLE, DataType::kFloat64},
      {tf::DT_COMPLEX64, DataType::kComplex64},
      {tf::DT_COMPLEX128, DataType::kComplex128},
  };
  for (const auto& pair : kTypes) {
    if (pair.tensorflow != type) continue;
    *out = pair.runtime;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("dtype " + tf::DataTypeString(type) + " is not supported");
}

absl::Status GetFactor(tf::OpKernelConstruction* construction, const char* attribute,
                       const std::string& tensor, double* factor) {
  std::string text;
  TF_RETURN_IF_ERROR(construction->GetAttr(attribute, &text));
  const char* end = text.data() + text.size();
  const std::from_chars_result parsed = std::from_chars(text.data(), end, *factor);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return absl::InvalidArgumentError("tensor " + tensor + ": " + attribute + " is '" + text +
                                      "', not a number");
  }
  return absl::OkStatus();
}

int64_t Bytes(const tf::Tensor& tensor) { return static_cast<int64_t>(tensor.TotalBytes()); }

}  // namespace

std::atomic<int64_t> forwarded_outputs{0};
std::atomic<int64_t> allocated_outputs{0};

Shape ToRuntimeShape(const tf::TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return Shape(sizes.begin(), sizes.end());
}

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* construction, CollectiveKind kind)
    : AsyncOpKernel(construction) {
  request_.kind = kind;
  OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &request_.name));
  OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &request_.process_set));
  if (construction->HasAttr("T")) {
    tf::DataType type;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type));
    OP_REQUIRES_OK(construction, ToRuntimeType(type, &request_.dtype));
  }
  if (construction->HasAttr("root_rank")) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root_rank", &request_.root));
  }
  if (construction->HasAttr("group")) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &request_.group));
  }
  if (construction->HasAttr("layout_hash")) {
    int64_t layout_hash = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("layout_hash", &layout_hash));
    request_.layout_hash = static_cast<uint64_t>(layout_hash);
  }
  if (Reduces(kind)) OP_REQUIRES_OK(construction, ReadReduction(construction));
}

absl::Status CollectiveKernel::ReadReduction(tf::OpKernelConstruction* construction) {
  int reduce_op = 0;
  TF_RETURN_IF_ERROR(construction->GetAttr("reduce_op", &reduce_op));
  if (reduce_op < 0 || reduce_op >= kNumReduceOps) {
    return absl::InvalidArgumentError("tensor " + request_.name + ": reduce_op must be 0 to " +
                                      std::to_string(kNumReduceOps - 1) + ", not " +
                                      std::to_string(reduce_op));
  }
  request_.op = static_cast<ReduceOp>(reduce_op);
  TF_RETURN_IF_ERROR(GetFactor(construction, "prescale_factor", request_.name, &request_.prescale));
  return GetFactor(construction, "postscale_factor", request_.name, &request_.postscale);
}

KernelCall CollectiveKernel::NewCall() const {
  KernelCall call;
  call.request = request_;
  return call;
}

absl::Status CollectiveKernel::PrepareSameShapes(tf::OpKernelContext* context, KernelCall* call) {
  const int count = context->num_outputs();
  // Forwarding needs an input that is referenced once: all of them first, and only then the
  // references that keep the other inputs alive.
  std::vector<tf::Tensor*> outputs(count, nullptr);
  for (int i = 0; i < count; ++i) {
    const tf::TensorShape shape = context->input(i).shape();
    call->request.shapes.push_back(ToRuntimeShape(shape));
    int from = -1;
    TF_RETURN_IF_ERROR(
        context->forward_input_or_allocate_output({i}, i, shape, &outputs[i], &from));
    (from >= 0 ? forwarded_outputs : allocated_outputs).fetch_add(1, std::memory_order_relaxed);
    const tf::Tensor& input = from >= 0 ? *outputs[i] : context->input(i);
    call->entry.buffers.push_back(
        {input.data(), outputs[i]->data(), Bytes(input), Bytes(*outputs[i])});
  }
  for (int i = 0; i < count; ++i) {
    if (call->entry.buffers[i].input != outputs[i]->data()) call->kept.push_back(context->input(i));
  }
  return absl::OkStatus();
}

void CollectiveKernel::AddInput(tf::OpKernelContext* context, int index, KernelCall* call) {
  const tf::Tensor& input = context->input(index);
  call->request.shapes.push_back(ToRuntimeShape(input.shape()));
  call->entry.buffers.push_back({input.data(), nullptr, Bytes(input), 0});
  call->kept.push_back(input);
}

void CollectiveKernel::AllocateOutputsLater(tf::OpKernelContext* context, KernelCall* call) {
  call->entry.allocate = [context](int index, const Shape& shape) -> Result<void*> {
    tf::TensorShape output_shape;
    tf::Tensor* output = nullptr;
    absl::Status status = tf::TensorShape::BuildTensorShape(shape, &output_shape);
    if (status.ok()) status = context->allocate_output(index, output_shape, &output);
    if (!status.ok()) return Internal(std::string(status.message()));
    allocated_outputs.fetch_add(1, std::memory_order_relaxed);
    return output->data();
  };
}

void CollectiveKernel::Submit(tf::OpKernelContext* context, KernelCall call, DoneCallback done) {
  auto kept = std::make_shared<std::vector<tf::Tensor>>(std::move(call.kept));
  call.entry.done = [context, kept, finish = std::move(call.finish),
                     done = std::move(done)](const Status& status) {
    absl::Status outcome = ToAbsl(status);
    if (outcome.ok() && finish) outcome = finish();
    if (!outcome.ok()) context->SetStatus(outcome);
    // After done() the step may go on: an input that we still held could not be forwarded.
    kept->clear();
    done();
  };
  ProcessRuntime::Get().Enqueue(std::move(call.request), std::move(call.entry));
}

void CollectiveKernel::Refuse(tf::OpKernelContext* context, const std::string& reason,
                              DoneCallback done) const {
  KernelCall call = NewCall();
  call.request.refusal = std::string(CollectiveKindName(request_.kind)) + " of tensor '" +
                         request_.name + "': " + reason;
  Submit(context, std::move(call), std::move(done));
}

}  // namespace tfring

// For metrics and tests, through ctypes.
extern "C" TFRING_EXPORT int64_t TfringForwardedOutputs() {
  return tfring::forwarded_outputs.load(std::memory_order_relaxed);
}
extern "C" TFRING_EXPORT int64_t TfringAllocatedOutputs() {
  return tfring::allocated_outputs.load(std::memory_order_relaxed);
}
