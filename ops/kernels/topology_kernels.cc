#include <algorithm>
#include <utility>
#include <vector>

#include "ops/kernels/conversions.h"
#include "ops/runtime/process/process_runtime.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Members are those of the process set, in ascending order; empty for the global one.
using Reader = int (*)(const Topology& topology, const std::vector<Rank>& members);

// Reads one number of the topology when it runs. Holds nothing but the process set's id; as many
// instances as there are nodes, any thread.
template <Reader read>
class TopologyKernel : public tf::OpKernel {
 public:
  explicit TopologyKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const Result<Topology> topology = ProcessRuntime::Get().topology();
    OP_REQUIRES_OK(context, ToAbsl(topology.status()));
    std::vector<Rank> members;
    if (process_set_ != kGlobalProcessSet) {
      Result<std::vector<Rank>> found = ProcessRuntime::Get().Members(process_set_);
      OP_REQUIRES_OK(context, ToAbsl(found.status()));
      members = std::move(*found);
    }
    tf::Tensor* value = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &value));
    *static_cast<int32_t*>(value->data()) = read(*topology, members);
  }

  bool IsExpensive() override { return false; }

 private:
  ProcessSetId process_set_ = kGlobalProcessSet;
};

// The position in the process set, or -1 if this rank is none of it.
int ReadRank(const Topology& topology, const std::vector<Rank>& members) {
  if (members.empty()) return topology.rank;
  const auto it = std::lower_bound(members.begin(), members.end(), topology.rank);
  const bool found = it != members.end() && *it == topology.rank;
  return found ? static_cast<int>(it - members.begin()) : -1;
}
int ReadSize(const Topology& topology, const std::vector<Rank>& members) {
  return members.empty() ? topology.size : static_cast<int>(members.size());
}
int ReadLocalRank(const Topology& topology, const std::vector<Rank>&) {
  return topology.local_rank;
}
int ReadLocalSize(const Topology& topology, const std::vector<Rank>&) {
  return topology.local_size;
}
int ReadCrossRank(const Topology& topology, const std::vector<Rank>&) {
  return topology.cross_rank;
}
int ReadCrossSize(const Topology& topology, const std::vector<Rank>&) {
  return topology.cross_size;
}
int ReadIncluded(const Topology& topology, const std::vector<Rank>& members) {
  return ReadRank(topology, members) >= 0 ? 1 : 0;
}

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
