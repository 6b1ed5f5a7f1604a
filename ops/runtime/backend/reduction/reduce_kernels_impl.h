#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_KERNELS_IMPL_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_KERNELS_IMPL_H_

// The kernels as templates, for the files that compile them once per instruction set. Everything
// is in an unnamed namespace, and the functions that are called from outside are flattened: of an
// inline function that several of these files emit, the linker keeps one copy, and this could be
// AVX-512 code that then runs on a processor without it.

#include <cstdint>
#include <type_traits>

#include "ops/runtime/backend/reduction/adasum_kernels_impl.h"
#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "ops/runtime/backend/reduction/value_kernels_impl.h"
#include "ops/runtime/base/half.h"

namespace tfring {
namespace {

template <typename T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

// How a dtype is stored, and the type in which its arithmetic happens. E stands for one of these in
// the templates below.
template <typename T>
struct Plain {
  using Stored = Unaligned<T>;
  using Value = T;
  static constexpr bool kRounds = false;  // storing loses bits
  static Value Load(const Stored& stored) { return stored.value; }
  static Stored Store(Value value) { return {value}; }
};

template <typename Half>
struct InFloat {
  using Stored = Unaligned<uint16_t>;
  using Value = float;
  static constexpr bool kRounds = true;
  static Value Load(const Stored& stored) { return Half{stored.value}.ToFloat(); }
  static Stored Store(Value value) { return {Half::FromFloat(value).bits}; }
};

// Integers wrap around, which only unsigned arithmetic may.
template <typename T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::common_type<T>>::type;

struct SumOp {
  template <typename T>
  static T Apply(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};

struct ProductOp {
  template <typename T>
  static T Apply(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};

struct MinOp {
  template <typename T>
  static T Apply(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
};

struct MaxOp {
  template <typename T>
  static T Apply(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
};

// Arrays are the same or do not overlap, so that iterations are independent.
#define TFRING_INDEPENDENT _Pragma("GCC ivdep")

template <typename E>
__attribute__((flatten)) void ScaleArray(void* dst, const void* src, int64_t count, Scale scale) {
  using Stored = typename E::Stored;
  Stored* to = static_cast<Stored*>(dst);
  const Stored* from = static_cast<const Stored*>(src);
  const float narrow = static_cast<float>(scale.factor);
  if (std::is_same_v<typename E::Value, float> && static_cast<double>(narrow) == scale.factor) {
    TFRING_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      to[i] = E::Store(static_cast<typename E::Value>(E::Load(from[i]) * narrow));
    }
    return;
  }
  TFRING_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) to[i] = E::Store(Scaled(E::Load(from[i]), scale));
}

template <typename To, typename From, typename Op>
inline void CombineBy(Op op, void* dst, const void* a, const void* b, int64_t count, Scale scale) {
  using Value = typename To::Value;
  auto* to = static_cast<typename To::Stored*>(dst);
  const auto* left = static_cast<const typename From::Stored*>(a);
  const auto* right = static_cast<const typename From::Stored*>(b);
  if (scale.identity()) {
    TFRING_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      to[i] = To::Store(op.Apply(From::Load(left[i]), From::Load(right[i])));
    }
    return;
  }
  const float narrow = static_cast<float>(scale.factor);
  if (std::is_same_v<Value, float> && static_cast<double>(narrow) == scale.factor) {
    TFRING_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      const auto sum = op.Apply(From::Load(left[i]), From::Load(right[i]));
      to[i] = To::Store(static_cast<Value>(sum * narrow));
    }
    return;
  }
  TFRING_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    to[i] = To::Store(Scaled(op.Apply(From::Load(left[i]), From::Load(right[i])), scale));
  }
}

template <typename E, typename Op>
__attribute__((flatten)) void CombineArrays(void* dst, const void* a, const void* b, int64_t count,
                                            Scale scale) {
  CombineBy<E, E>(Op(), dst, a, b, count, scale);
}

template <typename E>
__attribute__((flatten)) void WidenArray(void* dst, const void* src, int64_t count) {
  auto* to = static_cast<Unaligned<float>*>(dst);
  const auto* from = static_cast<const typename E::Stored*>(src);
  TFRING_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) to[i] = {E::Load(from[i])};
}

struct WeightedSumOp {
  float weight;
  float Apply(float a, float b) const { return a * weight + b; }
};

template <typename E>
__attribute__((flatten)) void AddWeighted(void* dst, const void* a, const void* b, int64_t count,
                                          float weight, Scale scale) {
  CombineBy<E, E>(WeightedSumOp{weight}, dst, a, b, count, scale);
}

template <typename To, typename From>
__attribute__((flatten)) void AddAndConvert(void* dst, const void* a, const void* b, int64_t count,
                                            Scale scale) {
  CombineBy<To, From>(SumOp(), dst, a, b, count, scale);
}

// By how E is stored; none for integers.
template <typename E>
constexpr ValueKernels kValueKernels = {};
template <>
constexpr ValueKernels kValueKernels<InFloat<Float16>> = ValueKernelsOf<uint16_t, 0x7c00>();
template <>
constexpr ValueKernels kValueKernels<InFloat<Bfloat16>> = ValueKernelsOf<uint16_t, 0x7f80>();
template <>
constexpr ValueKernels kValueKernels<Plain<float>> = ValueKernelsOf<uint32_t, 0x7f800000>();
template <>
constexpr ValueKernels kValueKernels<Plain<double>> =
    ValueKernelsOf<uint64_t, 0x7ff0000000000000>();

template <typename E>
constexpr ReduceKernels KernelsOf() {
  ReduceKernels kernels;
  kernels.sum = CombineArrays<E, SumOp>;
  kernels.min = CombineArrays<E, MinOp>;
  kernels.max = CombineArrays<E, MaxOp>;
  kernels.product = CombineArrays<E, ProductOp>;
  kernels.scale = ScaleArray<E>;
  kernels.values = kValueKernels<E>;
  if constexpr (E::kRounds) {
    kernels.widen = WidenArray<E>;
    kernels.weighted_sum = AddWeighted<E>;
    kernels.widening_sum = AddAndConvert<Plain<float>, E>;
    kernels.narrowing_sum = AddAndConvert<E, Plain<float>>;
  }
  if constexpr (std::is_floating_point_v<typename E::Value>) {
    kernels.adasum = {DotsOfArrays<E>, AdasumOfArrays<E>};
  }
  return kernels;
}

template <typename E>
constexpr ReduceKernels kKernels = KernelsOf<E>();

inline const ReduceKernels* KernelTable(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return &kKernels<Plain<uint8_t>>;
    case DataType::kInt8:
      return &kKernels<Plain<int8_t>>;
    case DataType::kInt32:
      return &kKernels<Plain<int32_t>>;
    case DataType::kInt64:
      return &kKernels<Plain<int64_t>>;
    case DataType::kFloat16:
      return &kKernels<InFloat<Float16>>;
    case DataType::kBfloat16:
      return &kKernels<InFloat<Bfloat16>>;
    case DataType::kFloat32:
      return &kKernels<Plain<float>>;
    case DataType::kFloat64:
      return &kKernels<Plain<double>>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_KERNELS_IMPL_H_
