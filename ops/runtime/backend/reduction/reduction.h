#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_

#include <vector>

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// How many members' inputs are in each side of a sum.
struct Summed {
  int left = 1;
  int right = 1;
};

// The arithmetic of one collective. A value type.
struct TFRING_EXPORT Reduction {
  const ReduceKernels* kernels = nullptr;  // null: the collective reduces nothing
  ReduceKernels::CombineFn combine = nullptr;
  const AdasumKernels* adasum = nullptr;  // instead of `combine`
  Scale before;  // applied to the inputs in a separate pass; the identity if none is needed
  Scale after;   // applied once to every complete element
  int most_halvings = 0;  // of a partial sum; 0 unless the dtype is float16

  // A partial sum of this many inputs is kept times 2 to the power of minus this.
  int Halvings(int members) const;

  // dst = a (op) b, where a and b are inputs or partial sums, dst a partial sum or, with `finish`,
  // a complete element. Addresses as for ReduceKernels.
  void Combine(void* dst, const void* a, const void* b, int64_t count, Summed summed,
               bool finish) const;
};

// The arithmetic of a collective; empty if it reduces nothing. Average is a Sum divided by the
// number of members. Factors count in the type in which their dtype is multiplied: float32 for
// float32 and the 16-bit floats, double for float64 and integers. For Sum, Average and Adasum of
// float32 and float64 the prescale becomes part of the final scale, which saves a pass. There are
// kernels for every op and dtype of a request that was accepted.
//
// A sum of float16 may be out of range although its average is not. So a partial sum of c members
// is halved until it is no larger than its largest input, ceil(log2 c) times, but not more often
// than the final scale does. Halving loses no bits but those below 2^-24.
TFRING_EXPORT Reduction ResolveReduction(const Collective& collective);

// The NaN and infinities in this rank's inputs, by buffer, if the collective adds floating-point
// numbers of several ranks: in the result they are on all ranks, and nobody can tell where they
// came from. Reads the inputs once.
std::vector<BadValues> FindBadValues(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCTION_H_
