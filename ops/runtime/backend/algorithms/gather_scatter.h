#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_GATHER_SCATTER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_GATHER_SCATTER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What the schedule of a gather or a scatter depends on: how many bytes every position sends to the
// root or receives from it. The output (of a scatter: the input) of the root consists of these
// blocks in order of position; blocks may be empty.
struct RootedShape {
  int self = 0;
  int root = 0;
  std::vector<int64_t> block_bytes;
  int64_t piece_bytes = 1;

  int size() const { return static_cast<int>(block_bytes.size()); }
  int64_t Begin(int block) const;
};

// The root receives every block from its owner, or sends it to its owner: 1 hop, and each block is
// sent once.
Schedule DirectGather(const RootedShape& shape);
Schedule DirectScatter(const RootedShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_GATHER_SCATTER_H_
