#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_RING_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_RING_ALLREDUCE_H_

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// Reduce-scatter then allgather around the ring self -> self + 1, pipelined in pieces. Sends
// 2 (N-1)/N of the data, whatever N. The order of summation depends on the position of an element.
Schedule RingAllreduce(const ReduceShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_RING_ALLREDUCE_H_
