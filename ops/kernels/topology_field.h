#ifndef TFRING_OPS_KERNELS_TOPOLOGY_FIELD_H_
#define TFRING_OPS_KERNELS_TOPOLOGY_FIELD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/runtime/process/process_runtime.h"

namespace tfring {

// The numbers that the topology ops (TfringRank, TfringSize, ...) read each time they run.
enum class TopologyField {
  kRank,  // within the process set; -1 if this rank is not a member
  kSize,  // of the process set
  kLocalRank,
  kLocalSize,
  kCrossRank,
  kCrossSize,
  kIncluded,  // 1 if this rank is a member of the process set, else 0
};

inline Result<int32_t> ReadTopology(TopologyField field, ProcessSetId process_set) {
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
  if (!runtime.ok()) return runtime.status();
  const Result<Topology> topology = ProcessRuntime::Get().topology();
  if (!topology.ok()) return topology.status();
  const Result<std::vector<Rank>> members = (*runtime)->Members(process_set);
  if (!members.ok()) return members.status();
  const auto found = std::find(members->begin(), members->end(), topology->rank);
  const bool included = found != members->end();
  switch (field) {
    case TopologyField::kRank:
      return included ? static_cast<int32_t>(found - members->begin()) : -1;
    case TopologyField::kSize:
      return static_cast<int32_t>(members->size());
    case TopologyField::kLocalRank:
      return topology->local_rank;
    case TopologyField::kLocalSize:
      return topology->local_size;
    case TopologyField::kCrossRank:
      return topology->cross_rank;
    case TopologyField::kCrossSize:
      return topology->cross_size;
    case TopologyField::kIncluded:
      return included ? 1 : 0;
  }
  return Internal("unknown topology field");
}

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_TOPOLOGY_FIELD_H_
