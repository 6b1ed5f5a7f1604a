#ifndef TFRING_TESTS_CC_BACKEND_VALUES_H_
#define TFRING_TESTS_CC_BACKEND_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/runtime/base/half.h"
#include "ops/runtime/base/types.h"

namespace tfring::testing {

inline constexpr DataType kReducibleTypes[] = {
    DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64,
    DataType::kInt8,    DataType::kUint8,    DataType::kInt32,   DataType::kInt64};

// Element i of the input of a rank: small whole numbers, exact in every dtype, and so are their
// sums and products over all ranks.
inline int Value(ReduceOp op, Rank rank, int64_t i) {
  const int64_t mixed = rank * 31 + i * 7 + i / 11;
  return op == ReduceOp::kProduct ? static_cast<int>(1 + mixed % 2) : static_cast<int>(mixed % 4);
}

// Float16 values: the sum of two is not finite, a sixteenth is zero. Averages of up to nine equal
// ones are exact: 15 * 2^12 and 2^-21 times 9 have few digits, so that no partial sum is rounded.
inline constexpr double kExtremeHalves[] = {61440.0, 1.0 / (1 << 21)};

// Element i of the sum, product, ... of all members; of Average the sum.
inline double Expected(ReduceOp op, const std::vector<Rank>& members, int64_t i) {
  double result = Value(op, members[0], i);
  for (size_t m = 1; m < members.size(); ++m) {
    const double value = Value(op, members[m], i);
    if (op == ReduceOp::kSum || op == ReduceOp::kAverage) result += value;
    if (op == ReduceOp::kMin) result = std::min(result, value);
    if (op == ReduceOp::kMax) result = std::max(result, value);
    if (op == ReduceOp::kProduct) result *= value;
  }
  return result;
}

inline void Store(DataType dtype, char* to, double value) {
  auto put = [to](auto typed) { std::memcpy(to, &typed, sizeof(typed)); };
  switch (dtype) {
    case DataType::kFloat16:
      return put(FloatToHalf(static_cast<float>(value)));
    case DataType::kBfloat16:
      return put(FloatToBfloat(static_cast<float>(value)));
    case DataType::kFloat32:
      return put(static_cast<float>(value));
    case DataType::kFloat64:
      return put(value);
    case DataType::kInt8:
    case DataType::kUint8:
      return put(static_cast<uint8_t>(static_cast<int64_t>(value)));
    case DataType::kInt32:
      return put(static_cast<int32_t>(value));
    default:
      return put(static_cast<int64_t>(value));
  }
}

template <typename T>
T Get(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline double Read(DataType dtype, const char* from) {
  switch (dtype) {
    case DataType::kFloat16:
      return HalfToFloat(Get<uint16_t>(from));
    case DataType::kBfloat16:
      return BfloatToFloat(Get<uint16_t>(from));
    case DataType::kFloat32:
      return Get<float>(from);
    case DataType::kFloat64:
      return Get<double>(from);
    case DataType::kInt8:
      return Get<int8_t>(from);
    case DataType::kUint8:
      return Get<uint8_t>(from);
    case DataType::kInt32:
      return Get<int32_t>(from);
    default:
      return static_cast<double>(Get<int64_t>(from));
  }
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_VALUES_H_
