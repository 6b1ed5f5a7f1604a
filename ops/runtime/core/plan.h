#ifndef TFRING_OPS_RUNTIME_CORE_PLAN_H_
#define TFRING_OPS_RUNTIME_CORE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// One request's share of a Plan.
struct PlanItem {
  std::string name;
  uint32_t cache_id = 0;  // from now on this id stands for the request; 0 is none
  // Allgather: first_dims[t * members + m] is the first dimension of tensor t on member m.
  std::vector<int64_t> first_dims;
};

// What the members of a process set do next (Horovod says Response). The sequencer stamps all
// Plans of all process sets with one ascending sequence; every rank runs its own in that order. A
// value type.
struct Plan {
  uint64_t sequence = 0;
  ProcessSetId process_set = kGlobalProcessSet;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = 0;  // broadcast: world rank
  Status error;   // not ok: nothing runs, the items end with this
  std::vector<PlanItem> items;
  std::vector<uint32_t> evicted;  // cache ids that mean nothing from here on
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_CORE_PLAN_H_
