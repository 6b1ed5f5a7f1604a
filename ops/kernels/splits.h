#ifndef TFRING_OPS_KERNELS_SPLITS_H_
#define TFRING_OPS_KERNELS_SPLITS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// Reads from an int32 or int64 tensor how many rows go to each rank. InvalidArgument if it is not a
// vector. The runtime checks the numbers (CheckContent).
absl::Status ReadSplits(const tensorflow::Tensor& tensor, std::vector<int64_t>* splits);

// Writes numbers of rows to an int32 or int64 output.
absl::Status WriteSplits(tensorflow::OpKernelContext* context, int output,
                         const std::vector<int64_t>& rows);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_SPLITS_H_
