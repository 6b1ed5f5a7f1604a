#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLREDUCE_H_

#include <cstdint>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// With more ranks, the N^2 messages of a direct exchange cost more than the hops of a tree.
inline constexpr int kDirectMaxRanks = 16;

// What the schedule of an allreduce (or a reduce) depends on. In all algorithms N is the number of
// members, S the size of the data in bytes, and `self` and peers are positions among the members.
// Costs are those of one rank; a hop is a message that another message has to wait for.
struct ReduceShape {
  int self = 0;
  int size = 1;
  int64_t elements = 0;
  int64_t element_bytes = 1;
  int64_t piece_bytes = 1;  // long messages are cut into pieces of this size and pipelined

  int64_t bytes() const { return elements * element_bytes; }
};

// Every rank sends its whole input to every other rank and adds up what it received, in the order
// of canonical_sum.h. 1 hop, N-1 messages, (N-1) S bytes sent: the fewest hops, for the smallest
// sizes.
Schedule DirectAllreduce(const ReduceShape& shape);

// A binomial tree (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
// Operations in MPICH"): sums go down the tree to position 0, which sends the result back up the
// same tree. 2 log2 N hops; a rank sends S to its parent and S to each of its children, of which
// position 0 has log2 N. Sums in canonical order. For small sizes on many ranks.
Schedule TreeAllreduce(const ReduceShape& shape);

// The ring of Patarasuk and Yuan 2009 ("Bandwidth Optimal All-reduce Algorithms for Clusters of
// Workstations"), as Horovod and NCCL have it: a reduce-scatter and then an allgather. The data is
// cut into N chunks. In each of N-1 rounds a rank sends one chunk to its right neighbour, receives
// the chunk before it from the left one and adds its own input to it; the chunk received in one
// round is the chunk sent in the next. Then every rank holds one finished chunk, and N-1 further
// rounds pass the finished chunks on in the same way, without adding. 2 (N-1) hops and messages of
// S/N bytes, 2 (N-1)/N S bytes sent, which no allreduce can beat: for large sizes. The order of
// summation differs from chunk to chunk.
Schedule RingAllreduce(const ReduceShape& shape);

// The two phases of the ring (Rabenseifner's reduce-scatter and allgather) with direct exchanges
// instead of rounds: rank j receives slice j of all inputs, adds them up in canonical order and
// sends the result to all. 2 hops, 2 (N-1) messages of S/N bytes, 2 (N-1)/N S bytes sent. Used
// for large sizes where the bits of the result must not depend on the size (DETERMINISTIC).
Schedule TwoPhaseAllreduce(const ReduceShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLREDUCE_H_
