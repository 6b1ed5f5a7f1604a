#ifndef TFRING_OPS_RUNTIME_CORE_REQUEST_H_
#define TFRING_OPS_RUNTIME_CORE_REQUEST_H_

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
  ReduceOp op = ReduceOp::kSum;  // allreduce only
  double prescale = 1.0;         // allreduce only
  double postscale = 1.0;        // allreduce only
  ProcessSetId process_set = kGlobalProcessSet;
  Rank root = 0;              // broadcast only: world rank
  uint64_t layout_hash = 0;   // of the bucket layout, where Python cut buckets; else 0
  bool group = false;         // planned alone when group fusion is disabled
  std::vector<Shape> shapes;  // one per tensor
};

bool operator==(const Request& a, const Request& b);

// "allreduce of tensor 'x'", the beginning of error messages.
std::string Describe(const Request& request);

// Of all tensors together; INT64_MAX when that does not fit.
int64_t TotalBytes(const Request& request);

// Checks what needs no other rank: known enums, a reducible dtype, no negative dimension, a root
// that is a member. `members` is the process set; InvalidArgument names the tensor.
Status CheckRequest(const Request& request, const std::vector<Rank>& members);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_CORE_REQUEST_H_
