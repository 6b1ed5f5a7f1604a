#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_KERNELS_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_KERNELS_H_

#include <cstdint>

#include "ops/runtime/backend/reduction/adasum_kernels.h"
#include "ops/runtime/backend/reduction/scaling.h"
#include "ops/runtime/backend/reduction/value_kernels.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// The arithmetic of one dtype. Addresses need no alignment; dst may be a or b but not overlap them
// otherwise. Counts are elements. 16-bit floats are combined and scaled in float32 and rounded
// once; integers wrap around; Min and Max pass NaN on, as numpy.minimum does. Thread-safe.
struct ReduceKernels {
  // dst = scale * (a (op) b)
  using CombineFn = void (*)(void* dst, const void* a, const void* b, int64_t count, Scale scale);
  // dst = scale * src
  using ScaleFn = void (*)(void* dst, const void* src, int64_t count, Scale scale);
  // dst = src
  using WidenFn = void (*)(void* dst, const void* src, int64_t count);
  // dst = scale * (weight * a + b); the weight is a power of two
  using WeightedFn = void (*)(void* dst, const void* a, const void* b, int64_t count, float weight,
                              Scale scale);

  CombineFn sum = nullptr;
  CombineFn min = nullptr;
  CombineFn max = nullptr;
  CombineFn product = nullptr;
  ScaleFn scale = nullptr;
  // Of the 16-bit floats, else null; the last three for sums of more than two, rounded once:
  WeightedFn weighted_sum = nullptr;
  WidenFn widen = nullptr;            // dst is float32
  CombineFn widening_sum = nullptr;   // dst is float32
  CombineFn narrowing_sum = nullptr;  // a and b are float32
  AdasumKernels adasum;               // null for integers
  ValueKernels values;                // null for integers

  CombineFn For(ReduceOp op) const;  // for Average the sum; null if there is none
};

enum class SimdLevel { kBase, kAvx2, kAvx512 };

// The best instruction set of this processor. All give the same bits.
SimdLevel BestSimdLevel();
const char* SimdLevelName(SimdLevel level);

// Null if the dtype has no arithmetic. `level` must be at most BestSimdLevel().
const ReduceKernels* FindReduceKernels(DataType dtype, SimdLevel level);
const ReduceKernels* FindReduceKernels(DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_KERNELS_H_
