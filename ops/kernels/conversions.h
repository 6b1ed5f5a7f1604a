#ifndef TFRING_OPS_KERNELS_CONVERSIONS_H_
#define TFRING_OPS_KERNELS_CONVERSIONS_H_

#include "absl/status/status.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"
#include "tensorflow/core/framework/op_kernel.h"

// What the op library and the XLA library both translate from TensorFlow to the runtime and back.
// conversions.cc is compiled into both.
namespace tfring {

// The codes have the same numbers in both, so TensorFlow raises the tf.errors class of that name.
absl::Status ToAbsl(const Status& status);

// Fills everything but shapes and splits from those attributes of the op that belong to a Request.
absl::Status ReadAttributes(const tensorflow::OpKernelConstruction& construction,
                            CollectiveKind kind, Request* request);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CONVERSIONS_H_
