#ifndef TFRING_OPS_KERNELS_SPLITS_H_
#define TFRING_OPS_KERNELS_SPLITS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// Reads how many rows go to each rank from a vector of int32 or int64. InvalidArgument unless the
// elements are not negative and add up to `rows`. The runtime checks that there is one per rank.
absl::Status ReadSplits(const tensorflow::Tensor& tensor, int64_t rows,
                        std::vector<int64_t>* splits);

// Writes numbers of rows to an output of int32 or int64.
absl::Status WriteSplits(tensorflow::OpKernelContext* context, int output,
                         const std::vector<int64_t>& rows);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_SPLITS_H_
