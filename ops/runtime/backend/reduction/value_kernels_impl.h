#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_VALUE_KERNELS_IMPL_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_VALUE_KERNELS_IMPL_H_

// The kernels of value_kernels.h as templates; a part of reduce_kernels_impl.h, which says why they
// are in an unnamed namespace and flattened.

#include <cstdint>

#include "ops/runtime/backend/reduction/value_kernels.h"

namespace tfring {
namespace {

template <typename Bits>
struct __attribute__((packed, may_alias)) UnalignedBits {
  Bits bits;
};

// Of a float that is stored as `Bits`: kExponent has the bits of the exponent, which are all ones
// in NaN and infinities only. Adding one to such an exponent, and to no other, carries into the
// sign bit.
template <typename Bits, Bits kExponent>
__attribute__((flatten)) bool AllFinite(const void* values, int64_t count) {
  constexpr Bits kOne = static_cast<Bits>(kExponent & (~kExponent + 1));
  constexpr int kSign = 8 * sizeof(Bits) - 1;
  const auto* from = static_cast<const UnalignedBits<Bits>*>(values);
  Bits carried = 0;
  for (int64_t i = 0; i < count; ++i) {
    carried |= static_cast<Bits>(static_cast<Bits>(from[i].bits & kExponent) + kOne);
  }
  return (carried >> kSign) == 0;
}

template <typename Bits, Bits kExponent>
__attribute__((flatten)) void CountNotFinite(const void* values, int64_t count, int64_t* nans,
                                             int64_t* infinities) {
  constexpr Bits kMagnitude = static_cast<Bits>(~static_cast<Bits>(0)) >> 1;
  const auto* from = static_cast<const UnalignedBits<Bits>*>(values);
  for (int64_t i = 0; i < count; ++i) {
    const Bits magnitude = from[i].bits & kMagnitude;
    *nans += magnitude > kExponent ? 1 : 0;
    *infinities += magnitude == kExponent ? 1 : 0;
  }
}

template <typename Bits, Bits kExponent>
constexpr ValueKernels ValueKernelsOf() {
  return {AllFinite<Bits, kExponent>, CountNotFinite<Bits, kExponent>};
}

}  // namespace
}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_VALUE_KERNELS_IMPL_H_
