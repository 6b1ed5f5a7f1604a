#ifndef TFRING_OPS_KERNELS_CONVERSIONS_H_
#define TFRING_OPS_KERNELS_CONVERSIONS_H_

#include "absl/status/status.h"
#include "ops/runtime/base/status.h"

namespace tfring {

// The runtime's codes are numbered like absl's, and so become the tf.errors class of that name.
inline absl::Status ToAbsl(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

static_assert(static_cast<int>(StatusCode::kCancelled) ==
              static_cast<int>(absl::StatusCode::kCancelled));
static_assert(static_cast<int>(StatusCode::kInvalidArgument) ==
              static_cast<int>(absl::StatusCode::kInvalidArgument));
static_assert(static_cast<int>(StatusCode::kDeadlineExceeded) ==
              static_cast<int>(absl::StatusCode::kDeadlineExceeded));
static_assert(static_cast<int>(StatusCode::kFailedPrecondition) ==
              static_cast<int>(absl::StatusCode::kFailedPrecondition));
static_assert(static_cast<int>(StatusCode::kUnimplemented) ==
              static_cast<int>(absl::StatusCode::kUnimplemented));
static_assert(static_cast<int>(StatusCode::kInternal) ==
              static_cast<int>(absl::StatusCode::kInternal));
static_assert(static_cast<int>(StatusCode::kUnavailable) ==
              static_cast<int>(absl::StatusCode::kUnavailable));

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CONVERSIONS_H_
