#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_BROADCAST_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_BROADCAST_H_

#include <cstdint>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What the schedule of a broadcast depends on. The root reads its input; all ranks, the root
// included, write their output. Costs: S is the size of the data, N the number of members.
struct BroadcastShape {
  int self = 0;
  int size = 1;
  int root = 0;
  int64_t bytes = 0;
  int64_t piece_bytes = 1;
};

// A binomial tree (Thakur, Rabenseifner and Gropp 2005): log2 N hops, but the root sends the data
// log2 N times. For small sizes.
Schedule TreeBroadcast(const BroadcastShape& shape);

// A pipelined chain: pieces follow each other from neighbour to neighbour around the ring, from the
// root to its left neighbour. N-1 hops for the first piece, at most S sent by a rank: for large
// sizes.
Schedule ChainBroadcast(const BroadcastShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_BROADCAST_H_
