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
  Request request;  // what this rank sends to the sequencer
  LocalCall local;  // what stays here: buffers and callbacks
  // Tensors in use until the collective has ended: on the CPU the inputs that are only read, which
  // TensorFlow may drop before; in device memory the inputs and outputs, because the device may
  // have work on them when the op has ended.
  std::shared_ptr<std::vector<tensorflow::Tensor>> held;
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
// 3. RankRuntime::Enqueue, of the generation in which the graph's execution began, takes the
//    Request and the buffers and returns at once. If Prepare failed, the Request carries the reason
//    (`refusal`): the sequencer then ends the collective on all ranks with InvalidArgument, and no
//    rank waits for this one.
// 4. When the collective has ended, a thread of the pool runs `finish`, sets the op's status and
//    calls `done`. TensorFlow may run the ops that follow on that same thread.
//
// For an op on a GPU, the tensors are in device memory (except int32, see registration.cc), which
// belongs to the stream on which TensorFlow computes. The call carries that stream and a mark of
// the work that comes before it. `done` comes when the results are there; with `early` already when
// the stream waits for them, so the caller of the op does not wait.
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
  absl::Status PrepareSameShapes(tensorflow::OpKernelContext* context, KernelCall* call) const;

  // Output i has the shape of input i and holds zeros in device memory; the collective does not
  // write it.
  absl::Status PrepareZeros(tensorflow::OpKernelContext* context, KernelCall* call) const;

  // Adds input `index`, which is only read.
  static void AddInput(tensorflow::OpKernelContext* context, int index, KernelCall* call);

  // Allocates each output when the runtime knows its shape.
  void AllocateOutputsLater(tensorflow::OpKernelContext* context, KernelCall* call) const;

  const Request& request() const { return request_; }

  // Whether the tensors are in the memory of a device that the CPU cannot read.
  bool on_device() const { return on_device_; }

 private:
  // Makes the call one on the stream of the op's device, if its tensors are there.
  Status UseDevice(tensorflow::OpKernelContext* context, KernelCall* call) const;

  Request request_;  // without shapes and splits
  bool on_device_ = false;
  bool early_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_KERNEL_BASE_H_
