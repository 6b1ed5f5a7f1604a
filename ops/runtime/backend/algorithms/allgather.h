#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLGATHER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLGATHER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What the schedule of an allgather depends on: how many bytes every position contributes. The
// output consists of these blocks in order of position; blocks may be empty. Costs are those of one
// rank; S is the size of the output, N the number of members.
struct AllgatherShape {
  int self = 0;
  std::vector<int64_t> block_bytes;
  int64_t piece_bytes = 1;

  int size() const { return static_cast<int>(block_bytes.size()); }
};

// The second half of the ring allreduce: in each of N-1 rounds a rank sends the block that it
// received last, at first its own, to its right neighbour. N-1 hops, S less one block sent, pieces
// pipelined: for large sizes.
Schedule RingAllgather(const AllgatherShape& shape);

// Every rank sends its block to every other rank. 1 hop, N-1 messages, N-1 times the own block
// sent: for small sizes.
Schedule DirectAllgather(const AllgatherShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLGATHER_H_
