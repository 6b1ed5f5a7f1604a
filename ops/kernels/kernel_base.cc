#include "ops/kernels/kernel_base.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "ops/kernels/conversions.h"
#include "ops/kernels/step_runs.h"
#include "ops/runtime/base/export.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Outputs that took over their input's buffer, and outputs that needed memory of their own.
std::atomic<int64_t> forwarded_outputs{0};
std::atomic<int64_t> allocated_outputs{0};

int64_t Bytes(const tf::Tensor& tensor) { return static_cast<int64_t>(tensor.TotalBytes()); }

Shape ShapeOf(const tf::Tensor& tensor) {
  const auto sizes = tensor.shape().dim_sizes();
  return Shape(sizes.begin(), sizes.end());
}

void Submit(tf::OpKernelContext* context, KernelCall call, tf::AsyncOpKernel::DoneCallback done) {
  auto inputs = std::make_shared<std::vector<tf::Tensor>>(std::move(call.inputs));
  const uint64_t run = StepRuns::Get().Enter(context, call.request.process_set);
  call.local.run = run;
  call.local.done = [context, run, inputs, finish = std::move(call.finish),
                     done = std::move(done)](const Status& status) {
    absl::Status outcome = ToAbsl(status);
    if (outcome.ok() && finish) outcome = finish();
    if (!outcome.ok()) context->SetStatus(outcome);
    // Before the ops that follow may run: none of them could forward an input that is held here.
    inputs->clear();
    StepRuns::Get().Leave(run, *context);
    done();
  };
  ProcessRuntime::Get().Enqueue(std::move(call.request), std::move(call.local));
}

}  // namespace

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* construction, CollectiveKind kind)
    : AsyncOpKernel(construction) {
  OP_REQUIRES_OK(construction, ReadAttributes(*construction, kind, &request_));
}

void CollectiveKernel::ComputeAsync(tf::OpKernelContext* context, DoneCallback done) {
  KernelCall call;
  call.request = request_;
  const absl::Status prepared = Prepare(context, &call);
  if (!prepared.ok()) {
    call = KernelCall();
    call.request = request_;
    Refuse(InvalidArgument(Describe(request_) + ": " + std::string(prepared.message())),
           &call.request);
  }
  Submit(context, std::move(call), std::move(done));
}

absl::Status CollectiveKernel::PrepareSameShapes(tf::OpKernelContext* context, KernelCall* call) {
  const int count = context->num_outputs();
  // TensorFlow forwards an input only while nobody else holds it, so `call->inputs`, which holds
  // those that were not forwarded, is filled after all outputs are there.
  std::vector<tf::Tensor*> outputs(count, nullptr);
  for (int i = 0; i < count; ++i) {
    const tf::TensorShape shape = context->input(i).shape();
    call->request.shapes.push_back(ShapeOf(context->input(i)));
    int from = -1;
    TF_RETURN_IF_ERROR(
        context->forward_input_or_allocate_output({i}, i, shape, &outputs[i], &from));
    (from >= 0 ? forwarded_outputs : allocated_outputs).fetch_add(1, std::memory_order_relaxed);
    const tf::Tensor& input = from >= 0 ? *outputs[i] : context->input(i);
    call->local.buffers.push_back(
        {input.data(), outputs[i]->data(), Bytes(input), Bytes(*outputs[i])});
  }
  for (int i = 0; i < count; ++i) {
    if (call->local.buffers[i].input != outputs[i]->data()) {
      call->inputs.push_back(context->input(i));
    }
  }
  return absl::OkStatus();
}

void CollectiveKernel::AddInput(tf::OpKernelContext* context, int index, KernelCall* call) {
  const tf::Tensor& input = context->input(index);
  call->request.shapes.push_back(ShapeOf(input));
  call->local.buffers.push_back({input.data(), nullptr, Bytes(input), 0});
  call->inputs.push_back(input);
}

void CollectiveKernel::AllocateOutputsLater(tf::OpKernelContext* context, KernelCall* call) {
  call->local.allocate = [context](int index, const Shape& shape) -> Result<void*> {
    tf::TensorShape output_shape;
    tf::Tensor* output = nullptr;
    absl::Status status = tf::TensorShape::BuildTensorShape(shape, &output_shape);
    if (status.ok()) status = context->allocate_output(index, output_shape, &output);
    if (!status.ok()) return Internal(std::string(status.message()));
    allocated_outputs.fetch_add(1, std::memory_order_relaxed);
    return output->data();
  };
}

}  // namespace tfring

// For tests and metrics; Python calls both through ctypes.
extern "C" TFRING_EXPORT int64_t TfringForwardedOutputs() {
  return tfring::forwarded_outputs.load(std::memory_order_relaxed);
}
extern "C" TFRING_EXPORT int64_t TfringAllocatedOutputs() {
  return tfring::allocated_outputs.load(std::memory_order_relaxed);
}
