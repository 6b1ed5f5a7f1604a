#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_PLAN_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// One request's share of a Plan.
struct PlanItem {
  std::string name;
  uint32_t cache_id = 0;  // from now on this id may be sent instead of the request; 0 is none
  // What the ranks cannot know by themselves, with M ranks taking part:
  // allgather, gather: [t * M + m] is the first dimension of tensor t on member m;
  // alltoall: [m] are the rows that go from the receiver of this plan to member m, [M + m] those
  // that come from m: no two members get the same plan; scatter: [m] the rows for m;
  // send/recv: the whole shape; join: {the rank that joined last};
  // adding a process set: {id, ranks...}; removing one: {id}.
  std::vector<int64_t> negotiated_values;
  AskTimes asked = {};  // on rank 0 only: it is not sent
};

// What the members of a process set do next (Horovod's Response). The sequencer gives the Plans of
// all process sets numbers from one ascending sequence; every rank runs its own in that order. A
// value type.
struct Plan {
  uint64_t sequence = 0;
  ProcessSetId process_set = kGlobalProcessSet;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = 0;        // see KindTraits::has_root: world rank
  Rank peer = kNoRank;  // send/recv: the receiver
  // kDevice: every member's tensors are in device memory, and every member can run it there. Ranks
  // with tensors in device memory stage a plan of kCpu.
  DataPath path = DataPath::kCpu;
  std::vector<Rank> absent;  // members that have joined and take no part; ascending
  Status error;              // not ok: nothing runs, the calls of the items end with this
  // With an error: a step fails with it, here or on another rank, so the attempt is over.
  bool ends_attempt = false;
  std::vector<PlanItem> items;
};

struct AddressedPlan {
  Plan plan;
  std::vector<Rank> recipients;
};

// The plan that `request` leads to, still without sequence, path, absent ranks and items. Fields
// that the kind does not use have their defaults.
Plan PlanFor(const Request& request);

// Whether two plans are the same collective: all that PlanFor sets is equal.
bool SameCollective(const Plan& a, const Plan& b);

// Names one accepted call on this rank; never used again within a generation.
using CallId = uint64_t;

// Why a rank runs a plan. kPlanned: rank 0 sent it. kEntered and kVoid: it is a batch of a locked
// schedule. Its members first tell each other whether they enter it. If one does not (kVoid), it is
// recalled on all: nothing is read or written, and its completion says so.
enum class PlanEntry : uint8_t { kPlanned, kEntered, kVoid };

// A plan as one rank runs it: with what that rank added when the plan arrived.
struct PlanRun {
  Plan plan;
  // The ranks that take part, ascending: the process set at this plan without the absent, or the
  // two of a send/recv. Empty if the plan is an error.
  std::vector<Rank> members;
  std::vector<CallId> calls;  // calls[i] is this rank's call of plan.items[i]; none if kVoid
  PlanEntry entry = PlanEntry::kPlanned;
  // Whose process set this plan removes, if no other set has exactly these ranks.
  std::vector<Rank> disbanded;

  bool uses_backend() const { return Traits(plan.kind).uses_backend; }
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_PLAN_H_
