// Kernels that move no data: channels, guards of steps, and numbers of the topology.

#include "ops/kernels/conversions.h"
#include "ops/kernels/registration.h"
#include "ops/kernels/step_runs.h"
#include "ops/kernels/topology_field.h"
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

// TfringStepGuard, which tfring/ops/step_guard.py puts into graphs that hold collectives. Runs when
// its graph starts, and returns at once. Constant after construction.
class StepGuardKernel : public tf::OpKernel {
 public:
  explicit StepGuardKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    StepRuns::Get().Guard(context, process_set_);
  }

  bool IsExpensive() override { return false; }

 private:
  ProcessSetId process_set_ = kGlobalProcessSet;
};

TFRING_REGISTER_KERNEL("TfringStepGuard", StepGuardKernel);

// Reads one number of the topology when the op runs. There is one instance per node of a graph,
// constant after construction, so several threads may run it.
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

TFRING_REGISTER_KERNEL("TfringRank", TopologyKernel<TopologyField::kRank>);
TFRING_REGISTER_KERNEL("TfringSize", TopologyKernel<TopologyField::kSize>);
TFRING_REGISTER_KERNEL("TfringLocalRank", TopologyKernel<TopologyField::kLocalRank>);
TFRING_REGISTER_KERNEL("TfringLocalSize", TopologyKernel<TopologyField::kLocalSize>);
TFRING_REGISTER_KERNEL("TfringCrossRank", TopologyKernel<TopologyField::kCrossRank>);
TFRING_REGISTER_KERNEL("TfringCrossSize", TopologyKernel<TopologyField::kCrossSize>);
TFRING_REGISTER_KERNEL("TfringProcessSetIncluded", TopologyKernel<TopologyField::kIncluded>);

}  // namespace
}  // namespace tfring
