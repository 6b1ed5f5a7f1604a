#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The arithmetic of one collective. A value type.
struct Reduction {
  const ReduceKernels* kernels = nullptr;  // null: the collective reduces nothing
  ReduceKernels::CombineFn combine = nullptr;
  const AdasumKernels* adasum = nullptr;  // instead of `combine`
  Scale before;  // applied to the inputs in a pass of its own; the identity where that can be saved
  Scale after;   // applied once to every complete element
};

// The arithmetic of a collective; empty if it reduces nothing. Average is a Sum divided by the
// number of members. Factors count in the type in which their dtype is multiplied: float32 for
// float32 and the 16-bit floats, double for float64 and integers. For Sum, Average and Adasum of
// float32 and float64 the prescale becomes part of the final scale, which saves a pass. There are
// kernels for every op and dtype of a request that was accepted.
TFRING_EXPORT Reduction ResolveReduction(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_
