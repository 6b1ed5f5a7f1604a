#ifndef TFRING_OPS_RUNTIME_PROCESS_OUTPUT_LAYOUT_H_
#define TFRING_OPS_RUNTIME_PROCESS_OUTPUT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/plan.h"

namespace tfring {

// Where one rank stands in a plan whose outputs are allocated when it comes. A value type.
struct LayoutRequest {
  CollectiveKind kind = CollectiveKind::kAllgather;
  DataType dtype = DataType::kUint8;
  size_t members = 1;  // that take part
  size_t self = 0;     // positions among them
  size_t root = 0;
};

// The output of one tensor on this rank. A value type.
struct OutputLayout {
  Shape shape;
  int64_t bytes = 0;
  std::vector<int64_t> blocks;  // as Collective::block_bytes
  std::vector<int64_t> sends;   // as Collective::send_bytes
  std::vector<int64_t> rows;    // alltoall: received from each member
};

// The layout of tensor number `tensor`, whose input here has the shape `own` (null: a receiver that
// takes any). `item` came over the wire: Internal if its dimensions do not fit the call, or hold
// more bytes than can be counted.
Result<OutputLayout> LayoutOf(const LayoutRequest& request, const PlanItem& item, size_t tensor,
                              const Shape* own);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_OUTPUT_LAYOUT_H_
