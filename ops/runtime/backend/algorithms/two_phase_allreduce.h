#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_TWO_PHASE_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_TWO_PHASE_ALLREDUCE_H_

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// Slice j goes to rank j, who sums all inputs in canonical order and sends the result to everybody:
// as many bytes as a ring, 2 (N-1)/N of the data, two hops, and the bits of DirectAllreduce.
Schedule DirectReduceScatterAllreduce(const ReduceShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_TWO_PHASE_ALLREDUCE_H_
