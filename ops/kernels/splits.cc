#include "ops/kernels/splits.h"

#include <string>

namespace tfring {

namespace tf = tensorflow;

absl::Status ReadSplits(const tf::Tensor& tensor, std::vector<int64_t>* splits) {
  if (tensor.dims() != 1) {
    return absl::InvalidArgumentError(
        "splits have to be a vector with one number of rows per rank, not of shape " +
        tensor.shape().DebugString());
  }
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    splits->push_back(tensor.dtype() == tf::DT_INT32
                          ? static_cast<const int32_t*>(tensor.data())[i]
                          : static_cast<const int64_t*>(tensor.data())[i]);
  }
  return absl::OkStatus();
}

absl::Status WriteSplits(tf::OpKernelContext* context, int output,
                         const std::vector<int64_t>& rows) {
  tf::Tensor* written = nullptr;
  const tf::TensorShape shape({static_cast<int64_t>(rows.size())});
  TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &written));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (written->dtype() == tf::DT_INT64) {
      static_cast<int64_t*>(written->data())[i] = rows[i];
    } else if (rows[i] <= INT32_MAX) {
      static_cast<int32_t*>(written->data())[i] = static_cast<int32_t>(rows[i]);
    } else {
      return absl::InvalidArgumentError(std::to_string(rows[i]) +
                                        " rows came from one rank: pass the splits as int64");
    }
  }
  return absl::OkStatus();
}

}  // namespace tfring
