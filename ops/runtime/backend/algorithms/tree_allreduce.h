#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_TREE_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_TREE_ALLREDUCE_H_

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// Binomial tree to position 0 and back, adjacent positions first: 2 log2 N hops, 2 (N-1) messages
// in all. Sums in canonical order, so with the bits of DirectAllreduce.
Schedule TreeAllreduce(const ReduceShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_TREE_ALLREDUCE_H_
