#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

constexpr size_t kMaxLayoutBytes = 1 << 20;
constexpr size_t kMaxRefusalBytes = 4096;

// "My tensor `name` is ready": what a rank sends to the sequencer, and all that the sequencer needs
// to check that the ranks agree. One Request is one call, which may carry a list of tensors that
// are planned as a whole. A value type.
struct Request {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // op and factors: see KindTraits::reduces
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSetId process_set = kGlobalProcessSet;
  Rank root = 0;             // see KindTraits::has_root: world rank
  Rank peer = kNoRank;       // send/recv only: the receiver's world rank
  uint64_t layout_hash = 0;  // of the bucket layout, where Python cut buckets; else 0
  // What the hash stands for, for messages: see LayoutTexts in process/call_notes.h. Only in the
  // first request of a rank with this hash, and not compared.
  std::string layout;
  // kDevice: the tensors are in device memory and this rank can run the collective there. kStaged:
  // it cannot.
  DataPath path = DataPath::kCpu;
  bool group = false;    // planned alone when group fusion is disabled
  bool unnamed = false;  // an eager call under a default name: matched by its order alone
  bool in_run = false;   // a step of this rank fails if it fails: see Plan::ends_attempt
  // The line of the user's program that makes the call, as "train.py:40"; empty where unknown. For
  // messages, and compared between the ranks of an unnamed call: see CallSiteCounts.
  std::string call_site;
  // One per tensor. A receiver may leave it out, or write -1 for dimensions that it does not know.
  // Scatter: the first dimension matters on the root only.
  std::vector<Shape> shapes;
  // Alltoall, and scatter on the root: rows for each member of the process set; empty: equal parts.
  std::vector<int64_t> splits;
  std::vector<Rank> set_ranks;                   // kAddProcessSet only: its ranks, ascending
  ProcessSetId removed_set = kGlobalProcessSet;  // kRemoveProcessSet only
  // Not empty: this rank found its own call invalid, for this reason. The request is sent all the
  // same, so that all members get InvalidArgument instead of waiting for this rank. Of the other
  // fields only name, kind, process set, root and peer have a meaning.
  std::string refusal;
};

bool operator==(const Request& a, const Request& b);

// "allreduce of tensor 'x'", the beginning of error messages.
TFRING_EXPORT std::string Describe(const Request& request);

// Whether the call sites of the ranks have to be equal. A call with a root may stand on one line
// for the root and on another for the rest, and a barrier mixes up no data.
bool CallSiteCounts(const Request& request);

// Of all tensors together; INT64_MAX when that does not fit.
int64_t TotalBytes(const Request& request);

// The ranks between which the request is agreed, ascending: the process set, or the two of a
// send/recv.
std::vector<Rank> RanksOf(const Request& request, const std::vector<Rank>& members);

// Alltoall, and scatter on the root: the splits, or the equal parts. The request has passed
// CheckRequest.
std::vector<int64_t> RowsByMember(const Request& request, size_t members);

// Turns `request` into a refusal with the message of `why` as its reason. Keeps only the fields
// that a refusal needs, so that it can be encoded whatever was wrong with the others.
TFRING_EXPORT void Refuse(const Status& why, Request* request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_REQUEST_H_
