#ifndef TFRING_OPS_KERNELS_SPLITS_H_
#define TFRING_OPS_KERNELS_SPLITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// Why a scalar cannot be cut into rows, and what to do.
std::string ScalarRefusal();

// Reads how many rows go to each rank from a vector of int32 or int64. Returns what is wrong with
// it by itself, or "": that it has one element per rank is the runtime's to check.
std::string ReadSplits(const tensorflow::Tensor& tensor, int64_t rows,
                       std::vector<int64_t>* splits);

// Writes numbers of rows to an output of int32 or int64.
absl::Status WriteSplits(tensorflow::OpKernelContext* context, int output,
                         const std::vector<int64_t>& rows);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_SPLITS_H_
