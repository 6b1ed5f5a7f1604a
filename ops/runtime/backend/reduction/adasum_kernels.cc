#include "ops/runtime/backend/reduction/adasum_kernels.h"

#include <cstring>

namespace tfring {

void AddDoubles(void* dst, const void* a, const void* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * static_cast<int64_t>(sizeof(double));
    double left = 0.0;
    double right = 0.0;
    std::memcpy(&left, static_cast<const char*>(a) + at, sizeof(double));
    std::memcpy(&right, static_cast<const char*>(b) + at, sizeof(double));
    left += right;
    std::memcpy(static_cast<char*>(dst) + at, &left, sizeof(double));
  }
}

}  // namespace tfring
