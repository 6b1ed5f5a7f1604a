#ifndef TFRING_OPS_RUNTIME_BASE_CLOCK_H_
#define TFRING_OPS_RUNTIME_BASE_CLOCK_H_

#include <chrono>

#include "ops/runtime/base/types.h"

namespace tfring {

// CLOCK_MONOTONIC.
inline TimePoint MonotonicNow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_CLOCK_H_
