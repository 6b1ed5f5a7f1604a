#ifndef TFRING_OPS_KERNELS_CONVERSIONS_H_
#define TFRING_OPS_KERNELS_CONVERSIONS_H_

#include "absl/status/status.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"
#include "tensorflow/core/framework/op_kernel.h"

// Translates from TensorFlow to the runtime and back. Both libraries compile conversions.cc.
namespace tfring {

// The codes have the same numbers on both sides, so TensorFlow raises the right tf.errors class.
absl::Status ToAbsl(const Status& status);

// Fills everything except shapes and splits from the op's attributes.
absl::Status ReadAttributes(const tensorflow::OpKernelConstruction& construction,
                            CollectiveKind kind, Request* request);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CONVERSIONS_H_
