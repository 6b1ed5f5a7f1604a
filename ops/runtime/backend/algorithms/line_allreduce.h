#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ALLREDUCE_H_

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// Pieces are summed on their way up the line 0 - 1 - ... - N-1 and travel back down. The order of
// summation is the same for every element, and only neighbours need be connected; about twice the
// data passes through every rank, as with a ring.
Schedule LineAllreduce(const ReduceShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ALLREDUCE_H_
