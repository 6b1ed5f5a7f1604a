#ifndef TFRING_OPS_RUNTIME_BASE_DEADLINE_H_
#define TFRING_OPS_RUNTIME_BASE_DEADLINE_H_

#include "ops/runtime/base/types.h"

namespace tfring {

// kNever where the sum does not fit.
inline TimePoint After(TimePoint start, Duration wait) {
  return start > kNever - wait ? kNever : start + wait;
}

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_DEADLINE_H_
