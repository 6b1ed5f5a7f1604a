#ifndef TFRING_OPS_KERNELS_COLLECTIVE_KERNEL_H_
#define TFRING_OPS_KERNELS_COLLECTIVE_KERNEL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernels/conversions.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// Outputs that took over their input's buffer, and outputs that needed memory of their own.
extern std::atomic<int64_t> forwarded_outputs;
extern std::atomic<int64_t> allocated_outputs;

Shape ToRuntimeShape(const tensorflow::TensorShape& shape);

// One call of a kernel on its way to the runtime: what is asked for, and what must live until the
// answer. Belongs to one thread at a time.
struct KernelCall {
  Request request;
  LocalCall entry;
  // Inputs that the runtime reads.
  std::vector<tensorflow::Tensor> kept;
  // What is left to do after a success, before TensorFlow goes on; may be empty.
  std::function<absl::Status()> finish;
};

// What all collective kernels share: a Request that is known but for the shapes, read from
// whichever of the usual attributes the op has, and the way of a call through the runtime. One
// instance per node, used by several executor threads at once: constant after construction.
// Outlives its calls, as TensorFlow keeps kernels until then.
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  CollectiveKernel(tensorflow::OpKernelConstruction* construction, CollectiveKind kind);

  // The call only leaves a message, so the executor may make it at once on its own thread.
  bool IsExpensive() override { return false; }

 protected:
  KernelCall NewCall() const;

  // The first `count` outputs have the inputs' shapes and, where nobody else reads an input, its
  // buffer.
  static absl::Status PrepareSameShapes(tensorflow::OpKernelContext* context, KernelCall* call);

  // Adds input `index`, which is only read.
  static void AddInput(tensorflow::OpKernelContext* context, int index, KernelCall* call);

  // The runtime says what shapes the outputs have when it knows.
  static void AllocateOutputsLater(tensorflow::OpKernelContext* context, KernelCall* call);

  static void Submit(tensorflow::OpKernelContext* context, KernelCall call, DoneCallback done);

  // Tells the other ranks that this one cannot take part, so that all get InvalidArgument with the
  // reason instead of waiting.
  void Refuse(tensorflow::OpKernelContext* context, const std::string& reason,
              DoneCallback done) const;

  Request request_;

 private:
  absl::Status ReadReduction(tensorflow::OpKernelConstruction* construction);
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_COLLECTIVE_KERNEL_H_
