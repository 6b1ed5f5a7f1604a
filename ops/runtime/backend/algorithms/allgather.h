#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLGATHER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLGATHER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What an allgather schedule depends on: how many bytes every position contributes. The output is
// the blocks in order of position; blocks may be empty.
struct GatherShape {
  int self = 0;
  std::vector<int64_t> block_bytes;
  int64_t piece_bytes = 1;

  int size() const { return static_cast<int>(block_bytes.size()); }
};

// Every block travels around the ring, in pieces.
Schedule RingAllgather(const GatherShape& shape);

// Everybody sends its block to everybody: one hop, for small sizes.
Schedule DirectAllgather(const GatherShape& shape);

// Blocks travel up and down the line 0 - 1 - ... - N-1: needs no other connections.
Schedule LineAllgather(const GatherShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLGATHER_H_
