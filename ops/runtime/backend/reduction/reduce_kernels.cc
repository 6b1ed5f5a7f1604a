#include "ops/runtime/backend/reduction/reduce_kernels.h"

#include "ops/runtime/backend/reduction/reduce_variants.h"

namespace tfring {

ReduceKernels::CombineFn ReduceKernels::For(ReduceOp op) const {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return sum;
    case ReduceOp::kMin:
      return min;
    case ReduceOp::kMax:
      return max;
    case ReduceOp::kProduct:
      return product;
    default:
      return nullptr;
  }
}

SimdLevel BestSimdLevel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return SimdLevel::kAvx2;
#endif
  return SimdLevel::kBase;
}

const char* SimdLevelName(SimdLevel level) {
  switch (level) {
    case SimdLevel::kAvx512:
      return "avx512";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kBase:
      break;
  }
  return "base";
}

const ReduceKernels* FindReduceKernels(DataType dtype, SimdLevel level) {
  switch (level) {
    case SimdLevel::kAvx512:
      return Avx512Kernels(dtype);
    case SimdLevel::kAvx2:
      return Avx2Kernels(dtype);
    case SimdLevel::kBase:
      break;
  }
  return BaseKernels(dtype);
}

const ReduceKernels* FindReduceKernels(DataType dtype) {
  static const SimdLevel level = BestSimdLevel();
  return FindReduceKernels(dtype, level);
}

}  // namespace tfring
