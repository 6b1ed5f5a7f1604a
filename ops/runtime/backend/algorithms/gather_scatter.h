#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_GATHER_SCATTER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_GATHER_SCATTER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What a gather or a scatter depends on: how many bytes every position sends to, or gets from, the
// root. The root's side is the blocks in order of position; blocks may be empty.
struct RootedShape {
  int self = 0;
  int root = 0;
  std::vector<int64_t> block_bytes;
  int64_t piece_bytes = 1;

  int size() const { return static_cast<int>(block_bytes.size()); }
  int64_t Begin(int block) const;
};

// Everybody exchanges its block with the root: one hop, and no byte more than the blocks.
Schedule DirectGather(const RootedShape& shape);
Schedule DirectScatter(const RootedShape& shape);

// Blocks travel along the line 0 - 1 - ... - N-1, to and from the root: needs no other connections.
Schedule LineGather(const RootedShape& shape);
Schedule LineScatter(const RootedShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_GATHER_SCATTER_H_
