#ifndef TFRING_OPS_KERNELS_KERNEL_BASE_H_
#define TFRING_OPS_KERNELS_KERNEL_BASE_H_

#include <functional>
#include <memory>
#include <vector>

#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// One execution of a collective op.
struct KernelCall {
  Request request;  // goes to the sequencer
  LocalCall local;  // stays on this rank: buffers and callbacks
  // Tensors in use until the collective has ended. On the CPU these are the inputs that are only
  // read, which TensorFlow may drop earlier. On a device they are the inputs and outputs, because
  // the device may still use them when the op has ended.
  std::shared_ptr<std::vector<tensorflow::Tensor>> held;
  // Runs after a success, before TensorFlow continues. May be empty.
  std::function<absl::Status()> finish;
};

// How one op goes through the runtime:
//
// 1. TensorFlow calls ComputeAsync on an executor thread when the op's inputs are ready. The
//    executor does not wait for the collective: it runs other ops until `done` is called.
// 2. Prepare completes the Request with the shapes of this execution and lists the buffers; the
//    constructor has read the rest from the op's attributes. An output takes over its input's
//    buffer (TensorFlow calls this forwarding) if no other op reads that input; the collective then
//    works in place. If an output's shape depends on other ranks, the control thread allocates it
//    when all ranks have sent their shapes.
// 3. RankRuntime::Enqueue takes the Request and the buffers and returns at once. The runtime is
//    that of the generation in which the graph's execution began. If Prepare failed, the Request
//    carries the reason (`refusal`): the sequencer then ends the collective on all ranks with
//    InvalidArgument, and no rank waits for this one.
// 4. When the collective has ended, a thread of the pool runs `finish`, sets the op's status and
//    calls `done`. TensorFlow may run the ops that follow on that same thread.
//
// For an op on a GPU, the tensors are in device memory (except int32, see registration.cc) and
// belong to the stream on which TensorFlow computes. The call carries that stream and an event
// after the work that comes before. `done` comes when the results are there. With `early` it comes
// when the stream waits for the results, so the caller of the op does not wait.
//
// There is one instance per node of a graph, and TensorFlow keeps it until its last call has ended.
// Constant after construction, so several executor threads may use it at once.
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  CollectiveKernel(tensorflow::OpKernelConstruction* construction, CollectiveKind kind);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

  // Cheap: the executor calls ComputeAsync on its own thread.
  bool IsExpensive() override { return false; }

 protected:
  // Fills in shapes, buffers and callbacks. `call` holds request() already.
  virtual absl::Status Prepare(tensorflow::OpKernelContext* context, KernelCall* call) const = 0;

  // Output i has the shape of input i and, if possible, its buffer.
  absl::Status PrepareSameShapes(tensorflow::OpKernelContext* context, KernelCall* call) const;

  // Output i has the shape of input i and is zero in device memory; the collective skips it.
  absl::Status PrepareZeros(tensorflow::OpKernelContext* context, KernelCall* call) const;

  // Adds input `index`, which the collective only reads.
  static void AddInput(tensorflow::OpKernelContext* context, int index, KernelCall* call);

  // Allocates each output when the runtime knows its shape.
  void AllocateOutputsLater(tensorflow::OpKernelContext* context, KernelCall* call) const;

  const Request& request() const { return request_; }

  // Returns whether the tensors are in device memory, which the CPU cannot read.
  bool on_device() const { return on_device_; }

 private:
  // Puts the call on the stream of the op's device, if the tensors are in device memory.
  Status UseDevice(tensorflow::OpKernelContext* context, KernelCall* call) const;

  Request request_;  // without shapes and splits
  bool on_device_ = false;
  bool early_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_KERNEL_BASE_H_
