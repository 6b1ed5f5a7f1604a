#ifndef TFRING_OPS_KERNELS_CONVERSIONS_H_
#define TFRING_OPS_KERNELS_CONVERSIONS_H_

#include "absl/status/status.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"
#include "tensorflow/core/framework/op_kernel.h"

// Translations from TensorFlow to the runtime and back. The op library and the XLA library both
// compile conversions.cc.
namespace tfring {

// The codes have the same numbers on both sides, so TensorFlow raises the tf.errors class of the
// code.
absl::Status ToAbsl(const Status& status);

// Fills everything except shapes and splits from the op's attributes.
absl::Status ReadAttributes(const tensorflow::OpKernelConstruction& construction,
                            CollectiveKind kind, Request* request);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CONVERSIONS_H_
