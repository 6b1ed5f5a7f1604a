#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_WIRE_KERNELS_IMPL_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_WIRE_KERNELS_IMPL_H_

// The kernels of wire_kernels.h as templates; a part of reduce_kernels_impl.h, which says what
// Wide (float32) and Narrow (a 16-bit float) stand for, and why everything is in an unnamed
// namespace and flattened.

#include <cstdint>

#include "ops/runtime/backend/reduction/wire_kernels.h"

namespace tfring {
namespace {

template <typename To, typename From>
__attribute__((flatten)) void ConvertArray(void* dst, const void* src, int64_t count) {
  auto* to = static_cast<typename To::Stored*>(dst);
  const auto* from = static_cast<const typename From::Stored*>(src);
  _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {
    to[i] = To::Store(From::Load(from[i]));
  }
}

template <typename Wide, typename Narrow>
__attribute__((flatten)) void RoundArray(void* dst, const void* src, int64_t count) {
  auto* to = static_cast<typename Wide::Stored*>(dst);
  const auto* from = static_cast<const typename Wide::Stored*>(src);
  _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {
    to[i] = Wide::Store(Narrow::Load(Narrow::Store(Wide::Load(from[i]))));
  }
}

template <typename Wide, typename Narrow>
constexpr WireKernels WireKernelsOf() {
  return {ConvertArray<Narrow, Wide>, ConvertArray<Wide, Narrow>, RoundArray<Wide, Narrow>};
}

}  // namespace
}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_WIRE_KERNELS_IMPL_H_
