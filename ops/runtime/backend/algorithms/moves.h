#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_MOVES_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_MOVES_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// The algorithms of collectives that move data and add nothing up. Costs are those of one rank; N
// is the number of members.

// What the schedule of an allgather, gather or scatter depends on: how many bytes every position
// contributes, sends to the root or receives from it. The output (of a scatter: the input of the
// root) consists of these blocks in order of position; blocks may be empty.
struct BlocksShape {
  int self = 0;
  std::vector<int64_t> block_bytes;
  int64_t piece_bytes = 1;
  int root = 0;  // not of an allgather

  int size() const { return static_cast<int>(block_bytes.size()); }
};

// The second half of the ring allreduce: in each of N-1 rounds a rank sends the block that it
// received last, at first its own, to its right neighbour. N-1 hops, the output less one block
// sent, pieces pipelined: for large sizes.
Schedule RingAllgather(const BlocksShape& shape);

// Every rank sends its block to every other rank. 1 hop, N-1 messages, N-1 times the own block
// sent: for small sizes.
Schedule DirectAllgather(const BlocksShape& shape);

// The root receives every block from its owner, or sends it to its owner: 1 hop, and each block is
// sent once.
Schedule DirectGather(const BlocksShape& shape);
Schedule DirectScatter(const BlocksShape& shape);

// What the schedule of a broadcast depends on. The root reads its input; all ranks, the root
// included, write their output.
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
// root to its left neighbour. N-1 hops for the first piece, at most the data sent by a rank: for
// large sizes.
Schedule ChainBroadcast(const BroadcastShape& shape);

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

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_MOVES_H_
