#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_DIRECT_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_DIRECT_ALLREDUCE_H_

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// Everybody sends everything to everybody and sums in canonical order: one hop, for small sizes.
Schedule DirectAllreduce(const ReduceShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_DIRECT_ALLREDUCE_H_
