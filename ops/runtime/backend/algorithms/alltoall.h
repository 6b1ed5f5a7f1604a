#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLTOALL_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLTOALL_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What an all-to-all schedule depends on: how many bytes this position sends to and gets from
// every position, its own included. Input and output are these blocks in order of position; what
// one sends another is what that one gets from it.
struct AlltoallShape {
  int self = 0;
  std::vector<int64_t> send_bytes;
  std::vector<int64_t> recv_bytes;
  int64_t piece_bytes = 1;
};

// Everybody sends everybody its block: no byte takes more than one hop. Empty blocks cost nothing.
Schedule PairwiseAlltoall(const AlltoallShape& shape);

// One sends everything to the other, in a set of two.
Schedule SendRecv(int self, int source, int64_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLTOALL_H_
