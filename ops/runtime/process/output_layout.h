#ifndef TFRING_OPS_RUNTIME_PROCESS_OUTPUT_LAYOUT_H_
#define TFRING_OPS_RUNTIME_PROCESS_OUTPUT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

// The place of this rank in a plan whose outputs are allocated now. A value type.
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

// The layout of tensor number `tensor`, whose input here has the shape `own` (any shape for a
// receiver). `values` are the plan's negotiated values, which have passed NegotiatedValuesFit.
// Pure.
OutputLayout LayoutOf(const LayoutRequest& request, const std::vector<int64_t>& values,
                      size_t tensor, const Shape& own);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_OUTPUT_LAYOUT_H_
