#include "ops/kernels/conversions.h"
#include "ops/runtime/engine/process_runtime.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

using Reader = int (*)(const Topology&);

// Reads one number of the topology when it runs. Holds nothing; as many instances as there are
// nodes, any thread.
template <Reader read>
class TopologyKernel : public tf::OpKernel {
 public:
  explicit TopologyKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
    OP_REQUIRES(construction, process_set_ == kGlobalProcessSet,
                absl::InvalidArgumentError("process set " + std::to_string(process_set_) +
                                           " is unknown: only the global one, 0, exists"));
  }

  void Compute(tf::OpKernelContext* context) override {
    const Result<Topology> topology = ProcessRuntime::Get().topology();
    OP_REQUIRES_OK(context, ToAbsl(topology.status()));
    tf::Tensor* value = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &value));
    value->scalar<int32_t>()() = read(*topology);
  }

  bool IsExpensive() override { return false; }

 private:
  int process_set_ = kGlobalProcessSet;
};

int ReadRank(const Topology& topology) { return topology.rank; }
int ReadSize(const Topology& topology) { return topology.size; }
int ReadLocalRank(const Topology& topology) { return topology.local_rank; }
int ReadLocalSize(const Topology& topology) { return topology.local_size; }
int ReadCrossRank(const Topology& topology) { return topology.cross_rank; }
int ReadCrossSize(const Topology& topology) { return topology.cross_size; }
// Every rank is in the global process set.
int ReadIncluded(const Topology&) { return 1; }

#define TFRING_REGISTER_TOPOLOGY_KERNEL(name, read) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), TopologyKernel<read>)

TFRING_REGISTER_TOPOLOGY_KERNEL("TfringRank", ReadRank);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringSize", ReadSize);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringLocalRank", ReadLocalRank);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringLocalSize", ReadLocalSize);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringCrossRank", ReadCrossRank);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringCrossSize", ReadCrossSize);
TFRING_REGISTER_TOPOLOGY_KERNEL("TfringProcessSetIncluded", ReadIncluded);

}  // namespace
}  // namespace tfring
