#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

// "My tensor `name` is ready": what a rank tells the sequencer, and all that the sequencer needs to
// check that the ranks agree. One Request stands for one call, which may carry a list of tensors
// that are planned as a whole. A value type.
struct Request {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // op and factors: see Reduces
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSetId process_set = kGlobalProcessSet;
  Rank root = 0;             // see HasRoot: world rank
  Rank peer = kNoRank;       // send/recv only: the receiver's world rank
  uint64_t layout_hash = 0;  // of the bucket layout, where Python cut buckets; else 0
  bool group = false;        // planned alone when group fusion is disabled
  bool resent = false;       // in full, as rank 0 did not know the cache id; not compared
  // One per tensor. A receiver may leave it out, or write -1 for dimensions that it does not know.
  // Scatter: the first dimension matters on the root only.
  std::vector<Shape> shapes;
  // Alltoall, and scatter on the root: rows for each member of the process set; empty: equal parts.
  // Adding a process set: its ranks. Removing one: its id.
  std::vector<int64_t> splits;
  // Not empty: the call is invalid on this rank, and why. Travels so that all members get
  // InvalidArgument instead of waiting for this one; nothing else of the request matters but name,
  // kind, process set, root and peer.
  std::string refusal;
};

bool operator==(const Request& a, const Request& b);

// "allreduce of tensor 'x'", the beginning of error messages.
TFRING_EXPORT std::string Describe(const Request& request);

// Of all tensors together; INT64_MAX when that does not fit.
int64_t TotalBytes(const Request& request);

// The ranks between which the request is agreed, ascending: the process set, or the two of a
// send/recv.
std::vector<Rank> ParticipantsOf(const Request& request, const std::vector<Rank>& members);

// Alltoall, and scatter on the root: the splits, or the equal parts. The request has passed
// CheckRequest.
std::vector<int64_t> RowsByMember(const Request& request, size_t members);

// Checks what it takes to bring the call together with those of the other ranks: the name, the
// kind, the two ends of a send/recv. `members` is the process set, `self` the rank that asks;
// InvalidArgument names the tensor. A call that fails here can only end where it was made.
Status CheckRouting(const Request& request, const std::vector<Rank>& members, Rank self);

// Checks all that needs no other rank: besides the address known enums, a reducible dtype, shapes
// and splits that the kind can have, a root that is a member. A call that fails here alone is to
// be refused (see Refuse), so that the other ranks hear of it.
Status CheckRequest(const Request& request, const std::vector<Rank>& members, Rank self);

// Makes `request` its own refusal for the reason that `why` gives: what was wrong with it is gone.
void Refuse(const Status& why, Request* request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_H_
