#include "ops/kernels/kernel_base.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "ops/kernels/conversions.h"
#include "ops/kernels/step_runs.h"
#include "ops/kernels/tensorflow_compat.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/process/call_notes.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Counts outputs that took over their input's buffer, and outputs that needed new memory.
std::atomic<int64_t> forwarded_outputs{0};
std::atomic<int64_t> allocated_outputs{0};

int64_t Bytes(const tf::Tensor& tensor) { return static_cast<int64_t>(tensor.TotalBytes()); }

Shape ShapeOf(const tf::Tensor& tensor) {
  const auto sizes = tensor.shape().dim_sizes();
  return Shape(sizes.begin(), sizes.end());
}

// Returns whether output `index` may have the buffer of the input with the same number: no other op
// reads it, and it lies in the kind of memory that the output needs. OpKernelContext::forward_input
// finds this out too, but looks at all outputs each time. With 500 outputs that is a large part of
// the op's cost.
bool IsFree(tf::OpKernelContext* context, int index) {
  const tf::AllocatorAttributes wanted = context->output_alloc_attr(index);
  return context->input(index).RefCountIsOne() &&
         context->input_memory_type(index) == context->output_memory_type(index) &&
         wanted.scope_id <= 0 &&
         wanted.IsEqualOrLessRestrictiveThan(context->input_alloc_attr(index));
}

// As allocate_output, but returns an error if there is no memory now. TensorFlow would wait for
// memory, and the control thread must not wait.
absl::Status AllocateAtOnce(tf::OpKernelContext* context, int index, const tf::TensorShape& shape,
                            tf::Tensor** output) {
  const tf::AllocationAttributes attributes(/*retry_on_failure=*/false,
                                            /*allocation_will_be_logged=*/true, nullptr);
  tf::Tensor allocated;
  TF_RETURN_IF_ERROR(context->allocate_temp(context->expected_output_dtype(index), shape,
                                            &allocated, context->output_alloc_attr(index),
                                            attributes));
  context->set_output(index, std::move(allocated));
  *output = context->mutable_output(index);
  return absl::OkStatus();
}

// For TensorFlow's profiler: a call from Submit to its `done`, as an event of the thread that runs
// `done`. It is not a pair of TraceMe::ActivityStart and ActivityEnd: TensorFlow 2.21 corrupts its
// memory if the two are on different threads.
class Trace {
 public:
  explicit Trace(const KernelCall& call) {
    if (!Recorder::Active()) return;
    event_ = {tsl::profiler::TraceMeEncode(Describe(call.request),
                                           {{"bytes", InputBytes(call.local.buffers)},
                                            {"process_set", call.request.process_set}}),
              tsl::profiler::GetCurrentTimeNanos(), 0};
  }

  void End() {
    if (event_.start_time == 0 || !Recorder::Active()) return;
    event_.end_time = tsl::profiler::GetCurrentTimeNanos();
    Recorder::Record(std::move(event_));
  }

 private:
  using Recorder = tsl::profiler::TraceMeRecorder;

  Recorder::Event event_{{}, 0, 0};  // has no start while no profile is taken
};

void Submit(tf::OpKernelContext* context, KernelCall call, tf::AsyncOpKernel::DoneCallback done) {
  AddCallSite(&call.request);
  const StepRun run = StepRuns::Get().Enter(context, call.request.process_set);
  call.local.run = run.number;
  // The device may still use the tensors if `done` comes early or with an error.
  const bool in_use_after_error = call.local.stream != nullptr;
  const bool in_use = call.local.early;
  if (call.local.stream != nullptr) call.local.keeps = call.held;
  Trace trace(call);
  const bool in_run = call.request.in_run;
  call.local.done = [context, run = run.number, in_run, trace = std::move(trace),
                     held = std::move(call.held), in_use, in_use_after_error,
                     finish = std::move(call.finish), early = in_use ? call.local.stream : nullptr,
                     done = std::move(done)](const Status& status) mutable {
    absl::Status outcome = ToAbsl(status);
    if (outcome.ok() && early != nullptr) outcome = ToAbsl(early->WaitForResults());
    if (outcome.ok() && finish) outcome = finish();
    if (!outcome.ok()) context->SetStatus(outcome);
    // Clear this before the ops that follow may run: none of them could forward a held tensor.
    if (!in_use && (status.ok() || !in_use_after_error)) held->clear();
    held.reset();
    StepRuns::Get().Leave(run, *context, in_run ? outcome : absl::OkStatus());
    trace.End();
    done();
  };
  EnqueueIn(run.generation, std::move(call.request), std::move(call.local));
}

}  // namespace

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* construction, CollectiveKind kind)
    : AsyncOpKernel(construction) {
  OP_REQUIRES_OK(construction, ReadAttributes(*construction, kind, &request_));
  OP_REQUIRES_OK(construction, construction->GetAttr("early", &early_));
  const auto on_device = [](const tf::MemoryTypeSlice& types) {
    return std::find(types.begin(), types.end(), tf::DEVICE_MEMORY) != types.end();
  };
  on_device_ = construction->device_type() == tf::DEVICE_GPU &&
               (on_device(construction->input_memory_types()) ||
                on_device(construction->output_memory_types()));
  // The caller of an eager op waits until the op is done.
  early_ = on_device_ && (early_ || !request_.in_run);
}

void CollectiveKernel::ComputeAsync(tf::OpKernelContext* context, DoneCallback done) {
  KernelCall call;
  call.request = request_;
  call.held = std::make_shared<std::vector<tf::Tensor>>();
  absl::Status prepared = Prepare(context, &call);
  // UseDevice comes after the allocation: work enqueued up to now may still use the memory.
  if (prepared.ok() && on_device_) prepared = ToAbsl(UseDevice(context, &call));
  if (!prepared.ok()) {
    call = KernelCall();
    call.request = request_;
    call.held = std::make_shared<std::vector<tf::Tensor>>();
    Refuse(InvalidArgument(Describe(request_) + ": " + std::string(prepared.message())),
           &call.request);
  }
  Submit(context, std::move(call), std::move(done));
}

Status CollectiveKernel::UseDevice(tf::OpKernelContext* context, KernelCall* call) const {
  tf::DeviceContext* const device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) {
    return Unavailable("TensorFlow gives no stream for " + context->device()->name());
  }
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
  if (!runtime.ok()) return runtime.status();
  Result<std::shared_ptr<DeviceStream>> stream =
      (*runtime)->WrapStream(device->stream()->platform_specific_handle().stream);
  if (!stream.ok()) return stream.status();
  call->local.stream = *std::move(stream);
  call->local.early = early_;
  return call->local.stream->MarkReady();
}

absl::Status CollectiveKernel::PrepareSameShapes(tf::OpKernelContext* context,
                                                 KernelCall* call) const {
  const int count = context->num_outputs();
  // A buffer is free only while nothing else holds it: fill `call->held` after all outputs exist.
  for (int i = 0; i < count; ++i) {
    const tf::Tensor& input = context->input(i);
    const bool forwards = IsFree(context, i);
    tf::Tensor* output = nullptr;
    if (forwards) {
      context->set_output(i, input);
      output = context->mutable_output(i);
    } else {
      TF_RETURN_IF_ERROR(context->allocate_output(i, input.shape(), &output));
    }
    (forwards ? forwarded_outputs : allocated_outputs).fetch_add(1, std::memory_order_relaxed);
    call->request.shapes.push_back(ShapeOf(input));
    call->local.buffers.push_back({input.data(), output->data(), Bytes(input), Bytes(*output)});
  }
  for (int i = 0; i < count; ++i) {
    const TensorBuffer& buffer = call->local.buffers[i];
    if (buffer.input != buffer.output) call->held->push_back(context->input(i));
    if (on_device_) call->held->push_back(*context->mutable_output(i));
  }
  return absl::OkStatus();
}

absl::Status CollectiveKernel::PrepareZeros(tf::OpKernelContext* context, KernelCall* call) const {
  for (int i = 0; i < context->num_outputs(); ++i) {
    AddInput(context, i, call);
    tf::Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(i, context->input(i).shape(), &output));
    allocated_outputs.fetch_add(1, std::memory_order_relaxed);
    TensorBuffer& buffer = call->local.buffers.back();
    buffer.output = output->data();
    buffer.output_bytes = Bytes(*output);
    if (buffer.output_bytes == 0) continue;
    tf::DeviceContext* const device = context->op_device_context();
    TF_RETURN_IF_ERROR(WriteZeros(device->stream(), buffer.output, output->TotalBytes()));
  }
  return absl::OkStatus();
}

void CollectiveKernel::AddInput(tf::OpKernelContext* context, int index, KernelCall* call) {
  const tf::Tensor& input = context->input(index);
  call->request.shapes.push_back(ShapeOf(input));
  call->local.buffers.push_back({input.data(), nullptr, Bytes(input), 0});
  call->held->push_back(input);
}

void CollectiveKernel::AllocateOutputsLater(tf::OpKernelContext* context, KernelCall* call) const {
  // Null on the CPU, where TensorFlow holds outputs long enough.
  const auto held = on_device_ ? call->held : nullptr;
  call->local.allocate = [context, held](int index, const Shape& shape) -> Result<void*> {
    tf::TensorShape output_shape;
    tf::Tensor* output = nullptr;
    absl::Status status = tf::TensorShape::BuildTensorShape(shape, &output_shape);
    if (status.ok()) {
      status = held == nullptr ? context->allocate_output(index, output_shape, &output)
                               : AllocateAtOnce(context, index, output_shape, &output);
    }
    if (!status.ok()) return Internal(std::string(status.message()));
    allocated_outputs.fetch_add(1, std::memory_order_relaxed);
    if (held != nullptr) held->push_back(*output);
    return output->data();
  };
}

}  // namespace tfring

// For tests and metrics. Python calls both through ctypes.
extern "C" TFRING_EXPORT int64_t TfringForwardedOutputs() {
  return tfring::forwarded_outputs.load(std::memory_order_relaxed);
}
extern "C" TFRING_EXPORT int64_t TfringAllocatedOutputs() {
  return tfring::allocated_outputs.load(std::memory_order_relaxed);
}
