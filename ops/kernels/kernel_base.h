#ifndef TFRING_OPS_KERNELS_KERNEL_BASE_H_
#define TFRING_OPS_KERNELS_KERNEL_BASE_H_

#include <functional>
#include <vector>

#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// One execution of a collective op.
struct KernelCall {
  Request request;  // what this rank sends to the sequencer
  LocalCall local;  // what stays here: buffers and callbacks
  // Inputs that the runtime reads from; held until the collective has ended.
  std::vector<tensorflow::Tensor> inputs;
  // Runs after a success, before TensorFlow continues; may be empty.
  std::function<absl::Status()> finish;
};

// The way of one op through the runtime:
//
// 1. TensorFlow calls ComputeAsync on an executor thread when the op's inputs are ready. The
//    executor does not wait for the collective: it runs other ops until `done` is called.
// 2. Prepare completes the Request, which was read from the op's attributes at construction, with
//    the shapes of this execution, and lists the buffers. An output takes over its input's buffer
//    (TensorFlow calls this forwarding) if nobody else reads that input; the collective then works
//    in place. Outputs whose shapes depend on other ranks are allocated later, on the control
//    thread, when all ranks have sent their shapes.
// 3. ProcessRuntime::Enqueue takes the Request and the buffers and returns at once. If Prepare
//    failed, the Request carries the reason (`refusal`): the sequencer then ends the collective on
//    all ranks with InvalidArgument, and no rank waits for this one.
// 4. When the collective has ended, the completion thread runs `finish`, sets the op's status and
//    calls `done`. TensorFlow may run the ops that follow on that same thread.
//
// There is one instance per node of a graph; TensorFlow keeps it until its last call has ended.
// Constant after construction, so several executor threads may use it at once.
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  CollectiveKernel(tensorflow::OpKernelConstruction* construction, CollectiveKind kind);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

  // Cheap enough for the executor to call ComputeAsync without handing it to another thread.
  bool IsExpensive() override { return false; }

 protected:
  // Fills in shapes, buffers and callbacks; request() is in `call` already.
  virtual absl::Status Prepare(tensorflow::OpKernelContext* context, KernelCall* call) const = 0;

  // Output i has the shape of input i and, if possible, its buffer.
  static absl::Status PrepareSameShapes(tensorflow::OpKernelContext* context, KernelCall* call);

  // Adds input `index`, which is only read.
  static void AddInput(tensorflow::OpKernelContext* context, int index, KernelCall* call);

  // Allocates each output when the runtime knows its shape.
  static void AllocateOutputsLater(tensorflow::OpKernelContext* context, KernelCall* call);

  const Request& request() const { return request_; }

 private:
  Request request_;  // without shapes and splits
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_KERNEL_BASE_H_
