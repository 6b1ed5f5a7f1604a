#include "ops/kernels/conversions.h"
#include "ops/kernels/topology_field.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Reads one number of the topology when the op runs. There is one instance per node of a graph,
// constant after construction, so any number of threads may run it.
template <TopologyField field>
class TopologyKernel : public tf::OpKernel {
 public:
  explicit TopologyKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const Result<int32_t> number = ReadTopology(field, process_set_);
    OP_REQUIRES_OK(context, ToAbsl(number.status()));
    tf::Tensor* value = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &value));
    *static_cast<int32_t*>(value->data()) = *number;
  }

  bool IsExpensive() override { return false; }

 private:
  ProcessSetId process_set_ = kGlobalProcessSet;
};

#define TFRING_REGISTER_TOPOLOGY_KERNEL(name, field) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), TopologyKernel<TopologyField::field>)

TFRING_REGISTER_TOPOLOGY_KERNEL("TfringRank", kRank);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringSize", kSize);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringLocalRank", kLocalRank);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringLocalSize", kLocalSize);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringCrossRank", kCrossRank);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringCrossSize", kCrossSize);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringProcessSetIncluded", kIncluded);

}  // namespace
}  // namespace tfring
