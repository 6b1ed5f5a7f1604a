#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_PLAN_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_PLAN_H_

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
  // What the ranks cannot know by themselves, with M ranks taking part:
  // allgather, gather: [t * M + m] is the first dimension of tensor t on member m;
  // alltoall: [s * M + d] are the rows that go from member s to d; scatter: [m] the rows for m;
  // send/recv: the whole shape; join: {the rank that joined last};
  // adding a process set: {id, ranks...}; removing one: {id}.
  std::vector<int64_t> negotiated_values;
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
  Rank root = 0;             // see HasRoot: world rank
  Rank peer = kNoRank;       // send/recv: the receiver
  std::vector<Rank> absent;  // members that have joined and take no part; ascending
  Status error;              // not ok: nothing runs, the items end with this
  std::vector<PlanItem> items;
  std::vector<uint32_t> evicted;  // cache ids that mean nothing from here on
  // Who takes part, ascending: the process set without `absent`, or the two of a send/recv. Does
  // not travel: every rank fills it in when it takes the plan, as the set may be gone later.
  std::vector<Rank> members;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_PLAN_H_
