#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLTOALL_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLTOALL_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What the schedule of an alltoall depends on: how many bytes this position sends to and receives
// from every position, itself included. Input and output consist of these blocks in order of
// position. What one position sends to another, the other one expects from it.
struct AlltoallShape {
  int self = 0;
  std::vector<int64_t> send_bytes;
  std::vector<int64_t> recv_bytes;
  int64_t piece_bytes = 1;
};

// Pairwise exchange (as in MPICH's alltoall of long messages): in round d a rank sends to the rank
// d positions after it and receives from the one d positions before it, so that the ranks do not
// all send to the same one. Rounds do not wait for each other. 1 hop, N-1 messages, the input less
// the own block sent; empty blocks cost nothing.
Schedule PairwiseAlltoall(const AlltoallShape& shape);

// One of two members sends everything to the other in one message.
Schedule SendRecv(int self, int source, int64_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLTOALL_H_
