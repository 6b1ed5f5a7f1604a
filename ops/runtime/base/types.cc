#include "ops/runtime/base/types.h"

namespace tfring {
namespace {

struct DataTypeInfo {
  const char* name;
  int64_t size;
  bool reducible;
};

// In the order of the enum.
constexpr DataTypeInfo kDataTypes[kNumDataTypes] = {
    {"bool", 1, false},   {"uint8", 1, true},      {"int8", 1, true},         {"uint16", 2, false},
    {"int16", 2, false},  {"uint32", 4, false},    {"int32", 4, true},        {"uint64", 8, false},
    {"int64", 8, true},   {"float16", 2, true},    {"bfloat16", 2, true},     {"float32", 4, true},
    {"float64", 8, true}, {"complex64", 8, false}, {"complex128", 16, false},
};
constexpr const char* kReduceOps[kNumReduceOps] = {"Average", "Sum", "Adasum",
                                                   "Min",     "Max", "Product"};

constexpr DataTypeInfo kUnknownType = {"unknown", 0, false};

const DataTypeInfo& Info(DataType dtype) {
  const int index = static_cast<int>(dtype);
  return index < kNumDataTypes ? kDataTypes[index] : kUnknownType;
}

}  // namespace

int64_t DataTypeSize(DataType dtype) { return Info(dtype).size; }

const char* DataTypeName(DataType dtype) { return Info(dtype).name; }

const char* ReduceOpName(ReduceOp op) {
  const int index = static_cast<int>(op);
  return index < kNumReduceOps ? kReduceOps[index] : "unknown";
}

bool IsReducible(DataType dtype) { return Info(dtype).reducible; }

int64_t NumElements(const Shape& shape) {
  for (int64_t dim : shape) {
    if (dim == 0) return 0;
  }
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(count, dim, &count)) return INT64_MAX;
  }
  return count;
}

int64_t RowBytes(const Shape& shape, DataType dtype) {
  Shape row = shape;
  row[0] = DataTypeSize(dtype);
  return NumElements(row);
}

std::string ShapeString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string RanksString(const std::vector<Rank>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    // Two neighbours read better as "2, 3".
    if (last == i + 1) {
      text += ", " + std::to_string(ranks[last]);
    } else if (last > i) {
      text += "-" + std::to_string(ranks[last]);
    }
    i = last + 1;
  }
  return text;
}

std::string RanksText(const std::vector<Rank>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + RanksString(ranks);
}

}  // namespace tfring
