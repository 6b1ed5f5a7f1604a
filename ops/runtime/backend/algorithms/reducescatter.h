#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCESCATTER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCESCATTER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What the schedule of a reducescatter depends on: the bytes of the block of every position. A
// position gets the sum of its block. The input consists of the blocks in order of position and is
// never written; the output is the rank's block. Blocks may be empty. Costs are those of one rank;
// S is the size of the input, N the number of members.
struct ReducescatterShape {
  int self = 0;
  std::vector<int64_t> block_bytes;
  int64_t element_bytes = 1;
  int64_t piece_bytes = 1;

  int size() const { return static_cast<int>(block_bytes.size()); }
  int64_t Begin(int block) const;
};

// Every rank sends each block to its owner, which adds them up in canonical order. 1 hop, N-1
// messages, S less the own block sent: for small sizes, and for all with DETERMINISTIC.
Schedule DirectReducescatter(const ReducescatterShape& shape);

// The first half of the ring allreduce (Patarasuk and Yuan 2009): the sum of a block begins at the
// right neighbour of its owner and travels around the ring, where each rank adds its input, until
// it ends at its owner. N-1 hops, S less one block sent, pieces pipelined: for large sizes. The
// order of summation depends on the owner only.
Schedule RingReducescatter(const ReducescatterShape& shape);

// The steps of DirectReducescatter, as a part of another schedule, with the result at `own`.
// Returns the steps that finish the result, by piece.
std::vector<int> AppendDirectReducescatter(ScheduleBuilder* builder,
                                           const ReducescatterShape& shape, Range own);
// How AppendDirectReducescatter cuts a block into pieces.
Pieces DirectPieces(const ReducescatterShape& shape, int block);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCESCATTER_H_
