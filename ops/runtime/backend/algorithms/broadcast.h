#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_BROADCAST_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_BROADCAST_H_

#include <cstdint>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What a broadcast schedule depends on. The root reads its input; everybody writes its output.
struct BroadcastShape {
  int self = 0;
  int size = 1;
  int root = 0;
  int64_t bytes = 0;
  int64_t piece_bytes = 1;
};

// Binomial tree: log2 N hops, for small sizes.
Schedule TreeBroadcast(const BroadcastShape& shape);

// Pieces follow each other from neighbour to neighbour around the ring: nobody sends the data more
// than once, for large sizes.
Schedule ChainBroadcast(const BroadcastShape& shape);

// The same along the line 0 - 1 - ... - N-1, from the root to both ends.
Schedule LineBroadcast(const BroadcastShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_BROADCAST_H_
