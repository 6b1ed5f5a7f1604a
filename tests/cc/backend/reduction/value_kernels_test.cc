#include "ops/runtime/backend/reduction/value_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "tests/cc/backend/simd_levels.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/test.h"

namespace tfring::testing::value_kernels_test {
namespace {

// How a dtype stores numbers: bits of its exponent and of its mantissa.
struct Format {
  DataType dtype;
  int exponent;
  int mantissa;
  uint64_t Infinity() const { return ((uint64_t{1} << exponent) - 1) << mantissa; }
  uint64_t Sign() const { return uint64_t{1} << (exponent + mantissa); }
};
constexpr Format kFormats[] = {{DataType::kFloat16, 5, 10},
                               {DataType::kBfloat16, 8, 7},
                               {DataType::kFloat32, 8, 23},
                               {DataType::kFloat64, 11, 52}};

// The finite values that are nearest to those that are not, or of a kind of their own.
std::vector<uint64_t> Finite(const Format& f) {
  std::vector<uint64_t> bits;
  const uint64_t smallest_normal = uint64_t{1} << f.mantissa;
  const uint64_t one = ((uint64_t{1} << (f.exponent - 1)) - 1) << f.mantissa;
  for (uint64_t value : {uint64_t{0}, uint64_t{1}, smallest_normal - 1, smallest_normal, one,
                         2 * one, f.Infinity() - 1, f.Infinity() - smallest_normal}) {
    bits.push_back(value);
    bits.push_back(value | f.Sign());
  }
  return bits;
}

struct Arrays {
  // `shift` bytes off a boundary of 64.
  Arrays(const Format& f, int64_t count, int shift) : format(f) {
    storage.resize(static_cast<size_t>(count * size() + 64 + shift));
    const size_t address = reinterpret_cast<size_t>(storage.data());
    data = storage.data() + (64 - address % 64) % 64 + shift;
  }
  int64_t size() const { return DataTypeSize(format.dtype); }
  void Set(int64_t i, uint64_t bits) {
    std::memcpy(data + i * size(), &bits, static_cast<size_t>(size()));
  }
  Format format;
  std::vector<char> storage;
  char* data;
};

TEST(FindsEachBadElementAtEveryPositionAndAlignment) {
  constexpr int kMost = 200;
  for (SimdLevel level : SimdLevels()) {
    for (const Format& f : kFormats) {
      const ValueKernels& kernels = FindReduceKernels(f.dtype, level)->values;
      const std::vector<uint64_t> finite = Finite(f);
      const uint64_t quiet = f.Infinity() | (uint64_t{1} << (f.mantissa - 1));
      const uint64_t bad[] = {
          f.Infinity(),     f.Infinity() | f.Sign(), quiet,
          quiet | f.Sign(), f.Infinity() + 1,        f.Infinity() | (f.Sign() - 1)};
      for (int shift : {0, 1, 2, 3, 4, 8, 17, 63}) {
        Arrays arrays(f, kMost, shift);
        for (int i = 0; i < kMost; ++i) arrays.Set(i, finite[i % finite.size()]);
        for (int count : {0, 1, 2, 15, 16, 31, 33, 64, 127, kMost}) {
          ASSERT_TRUE(kernels.all_finite(arrays.data, count));
        }
        for (int i = 0; i < kMost; ++i) {
          const uint64_t value = bad[i % std::size(bad)];
          arrays.Set(i, value);
          // With the bad element as the last, within, and just left out.
          const std::string what = std::string(DataTypeName(f.dtype)) + " " + SimdLevelName(level) +
                                   " shift " + std::to_string(shift) + " element " +
                                   std::to_string(i) + ": ";
          const bool found = !kernels.all_finite(arrays.data, i + 1) &&
                             !kernels.all_finite(arrays.data, kMost) &&
                             kernels.all_finite(arrays.data, i);
          ASSERT_EQ(what + (found ? "found" : "missed"), what + "found");
          int64_t nans = 0, infinities = 0;
          kernels.count(arrays.data, kMost, &nans, &infinities);
          const bool infinite = (value & ~f.Sign()) == f.Infinity();
          ASSERT_EQ(nans, infinite ? 0 : 1);
          ASSERT_EQ(infinities, infinite ? 1 : 0);
          arrays.Set(i, finite[i % finite.size()]);
        }
      }
    }
  }
}

TEST(IntegersHaveNoSuchValues) {
  for (DataType dtype : {DataType::kInt8, DataType::kUint8, DataType::kInt32, DataType::kInt64}) {
    EXPECT_TRUE(FindReduceKernels(dtype)->values.all_finite == nullptr);
  }
}

}  // namespace
}  // namespace tfring::testing::value_kernels_test
