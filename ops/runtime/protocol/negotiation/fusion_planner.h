#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_FUSION_PLANNER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_FUSION_PLANNER_H_

#include <cstdint>
#include <list>
#include <map>
#include <tuple>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// Decides which complete tensors share one Plan (tensor fusion): those of one process set with the
// same absent ranks, path, kind (one that fuses), dtype, op, factors and root, up to the threshold
// in bytes. A tensor is added to the last batch that matches, even if others were added in between;
// batches leave in the order of their first tensors, so the same additions always give the same
// batches. Pure; constant work per tensor.
class FusionPlanner {
 public:
  explicit FusionPlanner(const Config& config);

  // `handle` names the request to the caller. What all members agreed on decides, and `path`, which
  // is that of the plan.
  void Add(uint64_t handle, const Request& request, const std::vector<Rank>& absent = {},
           DataPath path = DataPath::kCpu);

  bool empty() const { return batches_.empty(); }

  // The next batch, in the order of Add; empty if there is none.
  std::vector<uint64_t> Take();

 private:
  using FusionKey = std::tuple<ProcessSetId, CollectiveKind, DataType, ReduceOp, double, double,
                               Rank, DataPath, std::vector<Rank>>;
  struct Batch {
    std::vector<uint64_t> handles;
    int64_t bytes = 0;
    bool open = false;  // open_[key] points here
    FusionKey key;
  };
  bool Alone(const Request& request, DataPath path) const;

  const int64_t threshold_;
  const bool groups_alone_;
  const bool deterministic_;
  std::list<Batch> batches_;
  std::map<FusionKey, Batch*> open_;  // the last batch of each key, while it can grow
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_FUSION_PLANNER_H_
