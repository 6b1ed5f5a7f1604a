#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The arithmetic of one collective that reduces. A value type.
struct Reduction {
  const ReduceKernels* kernels = nullptr;
  ReduceKernels::CombineFn combine = nullptr;
  const AdasumKernels* adasum = nullptr;  // instead of `combine`
  Scale before;  // applied to the inputs in a pass of its own; the identity where that can be saved
  Scale after;   // applied once to every complete element
};

// How to compute it: Average is a Sum divided by the number of members. For float32 and
// float64 Sum, Average and Adasum the prescale is part of the final scale, which saves a pass.
// Internal if there is no such reduction; requests for it are refused long before.
Result<Reduction> ResolveReduction(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_
