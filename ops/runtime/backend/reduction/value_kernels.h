#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_VALUE_KERNELS_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_VALUE_KERNELS_H_

#include <cstdint>

namespace tfring {

// Looks for NaN and infinities in arrays of one dtype. Addresses need no alignment, counts are
// elements. By the bits alone, so that modes of the processor (subnormals as zero) change nothing.
// Thread-safe.
struct ValueKernels {
  // Whether every element is finite. As fast as memory is read.
  bool (*all_finite)(const void* values, int64_t count) = nullptr;
  // Adds how many elements are NaN, and how many are infinite.
  void (*count)(const void* values, int64_t count, int64_t* nans, int64_t* infinities) = nullptr;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_VALUE_KERNELS_H_
