#include "ops/kernels/registration.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// TfringChannel and TfringChain: an empty handle, which orders ops while a graph is built.
class ChannelKernel : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &handle));
  }

  bool IsExpensive() override { return false; }
};

TFRING_REGISTER_KERNEL("TfringChannel", ChannelKernel);
TFRING_REGISTER_KERNEL("TfringChain", ChannelKernel);

}  // namespace
}  // namespace tfring
