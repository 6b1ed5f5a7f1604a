// TfringScaled, which tfring/training/weights.py uses to weight the gradients of ranks on a CPU.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

constexpr float kRounding = 1e-6f;  // a factor this close to 1 counts as 1
constexpr int64_t kCyclesOfElement = 2;

// The type in which a product is computed.
template <typename T>
using Wide =
    std::conditional_t<std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>, float,
                       std::conditional_t<std::is_integral_v<T>, double, T>>;

template <typename T>
T Times(T value, float factor) {
  return static_cast<T>(static_cast<Wide<T>>(value) * static_cast<Wide<T>>(factor));
}

// Passes the tensor on unchanged if the factor is 1.
template <typename T>
class ScaledKernel : public tf::OpKernel {
 public:
  explicit ScaledKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& given = context->input(0);
    OP_REQUIRES(context, tf::TensorShapeUtils::IsScalar(context->input(1).shape()),
                absl::InvalidArgumentError("TfringScaled takes a scalar as its factor, not shape " +
                                           context->input(1).shape().DebugString() + "."));
    const float factor = context->input(1).scalar<float>()();
    if (std::abs(factor - 1.0f) < kRounding) {
      context->set_output(0, given);
      return;
    }
    tf::Tensor* scaled = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, given.shape(), &scaled));
    const T* from = given.flat<T>().data();
    T* to = scaled->flat<T>().data();
    const auto scale = [from, to, factor](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        to[at] = factor == 0.0f ? T(0) : Times(from[at], factor);  // 0, even for NaN
      }
    };
    const auto* workers = context->device()->tensorflow_cpu_worker_threads();
    tf::Shard(workers->num_threads, workers->workers, given.NumElements(), kCyclesOfElement, scale);
  }

  bool IsExpensive() override { return false; }
};

#define TFRING_REGISTER_SCALED(type)                                                             \
  REGISTER_KERNEL_BUILDER(Name("TfringScaled").Device(tf::DEVICE_CPU).TypeConstraint<type>("T"), \
                          ScaledKernel<type>)

TFRING_REGISTER_SCALED(Eigen::half);
TFRING_REGISTER_SCALED(Eigen::bfloat16);
TFRING_REGISTER_SCALED(float);
TFRING_REGISTER_SCALED(double);
TFRING_REGISTER_SCALED(int8_t);
TFRING_REGISTER_SCALED(uint8_t);
TFRING_REGISTER_SCALED(int32_t);
TFRING_REGISTER_SCALED(int64_t);
TFRING_REGISTER_SCALED(tf::complex64);
TFRING_REGISTER_SCALED(tf::complex128);

}  // namespace
}  // namespace tfring
