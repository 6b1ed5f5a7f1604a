#include "tests/fakes/nccl/values.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/runtime/base/half.h"

namespace fake_nccl {
namespace {

using tfring::Bfloat16;
using tfring::Float16;

struct TypeFacts {
  size_t bytes;
  const char* name;
};
constexpr TypeFacts kTypes[] = {{1, "int8"},    {1, "uint8"},   {4, "int32"},   {4, "uint32"},
                                {8, "int64"},   {8, "uint64"},  {2, "float16"}, {4, "float32"},
                                {8, "float64"}, {2, "bfloat16"}};

template <typename T>
struct IsHalf : std::bool_constant<std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>> {};

// Calls body with a value of the C++ type of `dtype`.
template <typename Body>
void WithType(int dtype, Body body) {
  switch (dtype) {
    case ncclInt8:
      return body(int8_t{});
    case ncclUint8:
      return body(uint8_t{});
    case ncclInt32:
      return body(int32_t{});
    case ncclUint32:
      return body(uint32_t{});
    case ncclInt64:
      return body(int64_t{});
    case ncclUint64:
      return body(uint64_t{});
    case ncclFloat16:
      return body(Float16{});
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    default:
      return body(Bfloat16{});
  }
}

template <typename T>
T Load(const char* data, size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(T value, char* data, size_t i) {
  std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Apply(int op, T a, T b) {
  if constexpr (IsHalf<T>::value) {
    return T::FromFloat(Apply<float>(op, a.ToFloat(), b.ToFloat()));
  } else if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ncclProd:
        return a * b;
      case ncclMax:
        return std::fmax(a, b);
      case ncclMin:
        return std::fmin(a, b);
      default:
        return a + b;
    }
  } else {
    const auto x = static_cast<uint64_t>(a);  // wraps, where signed overflow is undefined
    const auto y = static_cast<uint64_t>(b);
    switch (op) {
      case ncclProd:
        return static_cast<T>(x * y);
      case ncclMax:
        return a > b ? a : b;
      case ncclMin:
        return a < b ? a : b;
      default:
        return static_cast<T>(x + y);
    }
  }
}

}  // namespace

bool IsDataType(int dtype) { return dtype >= ncclInt8 && dtype <= ncclBfloat16; }
size_t ElementBytes(int dtype) { return kTypes[dtype].bytes; }
const char* DataTypeName(int dtype) { return IsDataType(dtype) ? kTypes[dtype].name : "?"; }

const char* OperatorName(int op) {
  static constexpr const char* kNames[] = {"sum", "prod", "max", "min"};
  return op < 0 ? "none" : kNames[op];
}

void Combine(int dtype, int op, char* into, const char* with, size_t count) {
  WithType(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < count; ++i) {
      Store(Apply<T>(op, Load<T>(into, i), Load<T>(with, i)), into, i);
    }
  });
}

}  // namespace fake_nccl
