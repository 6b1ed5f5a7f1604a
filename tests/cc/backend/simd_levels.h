#ifndef TFRING_TESTS_CC_BACKEND_SIMD_LEVELS_H_
#define TFRING_TESTS_CC_BACKEND_SIMD_LEVELS_H_

#include <vector>

#include "ops/runtime/backend/reduction/reduce_kernels.h"

namespace tfring::testing {

// For which this machine has instructions, the portable one first.
inline std::vector<SimdLevel> SimdLevels() {
  std::vector<SimdLevel> levels = {SimdLevel::kBase};
  if (BestSimdLevel() >= SimdLevel::kAvx2) levels.push_back(SimdLevel::kAvx2);
  if (BestSimdLevel() >= SimdLevel::kAvx512) levels.push_back(SimdLevel::kAvx512);
  return levels;
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_SIMD_LEVELS_H_
