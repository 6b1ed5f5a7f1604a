#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCESCATTER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCESCATTER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What a reduce-scatter schedule depends on: how many bytes of the input every position gets the
// sum of. The input is the blocks in order of position and is never written, the output is the own
// block; blocks may be empty.
struct ScatterShape {
  int self = 0;
  std::vector<int64_t> block_bytes;
  int64_t element_bytes = 1;
  int64_t piece_bytes = 1;

  int size() const { return static_cast<int>(block_bytes.size()); }
  int64_t Begin(int block) const;
};

// Every block goes straight to its owner, who sums in canonical order: one hop.
Schedule DirectReducescatter(const ScatterShape& shape);

// Sums travel around the ring self -> self + 1, pipelined in pieces, and end at their owner. The
// order of summation depends on the owner only. Both send all blocks but one, once.
Schedule RingReducescatter(const ScatterShape& shape);

// Sums travel along the line 0 - 1 - ... - N-1 towards their owner from both ends, so that only
// neighbours need be connected. Every rank sends at most all blocks but its own, once.
Schedule LineReducescatter(const ScatterShape& shape);

// DirectReducescatter as a part of something larger, with the own result at `own`. Returns the
// steps that finish it, by piece.
std::vector<int> AppendDirectReducescatter(ScheduleBuilder* builder, const ScatterShape& shape,
                                           Range own);
// The pieces of a block there.
Pieces DirectPieces(const ScatterShape& shape, int block);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCESCATTER_H_
