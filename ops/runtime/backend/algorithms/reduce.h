#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCE_H_

#include "ops/runtime/backend/algorithms/allreduce.h"

namespace tfring {

// Reductions to one position, the root. Only the root has an output, which may be its input; the
// others add up in scratch. The first two algorithms sum in canonical order and so give the bits
// of DirectAllreduce. Costs as in allreduce.h.

// Every rank sends its whole input to the root. 1 hop, S sent, N-1 inputs in the root's scratch:
// for the smallest sizes.
Schedule DirectReduce(const ReduceShape& shape, int root);

// A binomial tree to position 0, which sends the result to the root: log2 N + 1 hops, S sent. For
// small sizes on many ranks, and for all with DETERMINISTIC.
Schedule TreeReduce(const ReduceShape& shape, int root);

// A pipelined chain: sums of pieces travel from neighbour to neighbour around the ring, beginning
// behind the root and ending at it. N-1 hops for the first piece, S sent: for large sizes. The
// order of summation is the same for every element.
Schedule ChainReduce(const ReduceShape& shape, int root);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCE_H_
