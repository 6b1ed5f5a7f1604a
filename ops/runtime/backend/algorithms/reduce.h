#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCE_H_

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// Reductions to one position. Only the root has an output, which may be its input; what the others
// add up lies in scratch. The first three sum in canonical order, so with the bits of
// DirectAllreduce.

// Everybody sends everything to the root: one hop, for small sizes.
Schedule DirectReduce(const ReduceShape& shape, int root);

// Binomial tree to position 0, who passes the result on to the root: log2 N + 1 hops.
Schedule TreeReduce(const ReduceShape& shape, int root);

// Slice j goes to rank j, who sums it and sends it to the root: every rank sends the data once.
Schedule ScatterReduce(const ReduceShape& shape, int root);

// Sums of pieces go from neighbour to neighbour around the ring and end at the root: every rank
// sends and receives the data once. The order of summation is the same for every element.
Schedule ChainReduce(const ReduceShape& shape, int root);

// The same along the line 0 - 1 - ... - N-1, from both ends to the root.
Schedule LineReduce(const ReduceShape& shape, int root);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_REDUCE_H_
