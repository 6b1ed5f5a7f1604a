#include "ops/runtime/backend/reduction/reduce_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/base/half.h"
#include "tests/cc/backend/simd_levels.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/test.h"

namespace tfring::testing::reduce_kernels_test {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

template <typename T>
T Random(std::mt19937& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random() * 0x100000001u);
  } else {
    const double value =
        std::ldexp(static_cast<double>(random()) / 1e9 - 2.0, static_cast<int>(random() % 8));
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(value);
    else
      return T::FromFloat(static_cast<float>(value));
  }
}

template <typename T>
auto Wide(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return value;
  else
    return value.ToFloat();
}

// The definition, one element at a time.
template <typename T>
T Reference(ReduceOp op, T a, T b, double factor) {
  auto x = Wide(a);
  auto y = Wide(b);
  using W = decltype(x);
  W result{};
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (op == ReduceOp::kSum) result = static_cast<T>(static_cast<U>(x) + static_cast<U>(y));
    if (op == ReduceOp::kProduct) result = static_cast<T>(static_cast<U>(x) * static_cast<U>(y));
  } else {
    if (op == ReduceOp::kSum) result = x + y;
    if (op == ReduceOp::kProduct) result = x * y;
  }
  if (op == ReduceOp::kMin) result = x < y ? x : y;
  if (op == ReduceOp::kMax) result = x > y ? x : y;
  if constexpr (std::is_integral_v<T>) {
    return result;
  } else {
    result = static_cast<W>(static_cast<double>(result) * factor);
    if constexpr (std::is_floating_point_v<T>)
      return result;
    else
      return T::FromFloat(result);
  }
}

template <typename T>
void CheckType(DataType dtype) {
  std::mt19937 random(17);
  for (SimdLevel level : SimdLevels()) {
    const ReduceKernels* kernels = FindReduceKernels(dtype, level);
    ASSERT_TRUE(kernels != nullptr);
    for (ReduceOp op : kOps) {
      for (int count : {0, 1, 7, 64, 129, 1000}) {
        std::vector<T> a(count), b(count), expected(count);
        // One byte off: nothing may rely on alignment.
        std::vector<char> storage(3 * (count * sizeof(T) + 1));
        char* left = storage.data() + 1;
        char* right = left + count * sizeof(T) + 1;
        char* out = right + count * sizeof(T) + 1;
        for (double factor : {1.0, 0.5, 1.0 / 3.0}) {
          if (std::is_integral_v<T> && factor != 1.0) continue;
          for (int i = 0; i < count; ++i) {
            a[i] = Random<T>(random);
            b[i] = Random<T>(random);
            expected[i] = Reference(op, a[i], b[i], factor);
          }
          if (count == 0) continue;
          std::memcpy(left, a.data(), count * sizeof(T));
          std::memcpy(right, b.data(), count * sizeof(T));
          kernels->For(op)(out, left, right, count, Scale{factor, 1});
          ASSERT_EQ(std::memcmp(out, expected.data(), count * sizeof(T)), 0);
          kernels->For(op)(left, left, right, count, Scale{factor, 1});
          ASSERT_EQ(std::memcmp(left, expected.data(), count * sizeof(T)), 0);
          std::memcpy(left, a.data(), count * sizeof(T));
          kernels->For(op)(right, left, right, count, Scale{factor, 1});
          ASSERT_EQ(std::memcmp(right, expected.data(), count * sizeof(T)), 0);
        }
      }
    }
  }
}

TEST(EveryTypeAndOpGivesTheReferenceBitsAtEveryLevel) {
  CheckType<Float16>(DataType::kFloat16);
  CheckType<Bfloat16>(DataType::kBfloat16);
  CheckType<float>(DataType::kFloat32);
  CheckType<double>(DataType::kFloat64);
  CheckType<int8_t>(DataType::kInt8);
  CheckType<uint8_t>(DataType::kUint8);
  CheckType<int32_t>(DataType::kInt32);
  CheckType<int64_t>(DataType::kInt64);
}

TEST(MinAndMaxPassNanOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (SimdLevel level : SimdLevels()) {
    const ReduceKernels* kernels = FindReduceKernels(DataType::kFloat32, level);
    for (int i = 0; i < 40; ++i) {
      std::vector<float> a(40, 1.0f), b(40, 2.0f), out(40);
      (i % 2 == 0 ? a : b)[i] = nan;
      kernels->min(out.data(), a.data(), b.data(), 40, Scale());
      for (int j = 0; j < 40; ++j) EXPECT_TRUE(j == i ? std::isnan(out[j]) : out[j] == 1.0f);
      kernels->max(out.data(), a.data(), b.data(), 40, Scale());
      for (int j = 0; j < 40; ++j) EXPECT_TRUE(j == i ? std::isnan(out[j]) : out[j] == 2.0f);
    }
  }
}

TEST(AllLevelsAgreeOnEvery16BitPattern) {
  std::vector<uint16_t> all(1 << 16), other(1 << 16);
  for (int i = 0; i < 1 << 16; ++i) {
    all[i] = static_cast<uint16_t>(i);
    other[i] = static_cast<uint16_t>(i * 40503u);
  }
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    for (ReduceOp op : kOps) {
      for (double factor : {1.0, 0.25, 1.0 / 7.0}) {
        std::vector<uint16_t> first(1 << 16), out(1 << 16);
        for (SimdLevel level : SimdLevels()) {
          FindReduceKernels(dtype, level)
              ->For(op)(out.data(), all.data(), other.data(), 1 << 16, Scale{factor, 1});
          if (level == SimdLevel::kBase) first = out;
          // Two NaNs may give either's payload.
          for (int i = 0; i < 1 << 16; ++i) {
            const bool is_nan =
                dtype == DataType::kFloat16
                    ? std::isnan(HalfToFloat(first[i])) && std::isnan(HalfToFloat(out[i]))
                    : std::isnan(BfloatToFloat(first[i])) && std::isnan(BfloatToFloat(out[i]));
            ASSERT_TRUE(is_nan || first[i] == out[i]);
          }
        }
      }
    }
  }
}

TEST(WeightedSumsAreRoundedOnceAtEveryLevel) {
  std::mt19937 random(23);
  std::vector<uint16_t> a(1001), b(1001), out(1001);
  for (SimdLevel level : SimdLevels()) {
    for (double factor : {1.0, 0.125, 1.0 / 3.0}) {
      for (float weight : {2.0F, 4.0F}) {
        for (size_t i = 0; i < a.size(); ++i) {
          a[i] = Random<Float16>(random).bits;
          b[i] = Random<Float16>(random).bits;
        }
        FindReduceKernels(DataType::kFloat16, level)
            ->weighted_sum(out.data(), a.data(), b.data(), 1001, weight, Scale{factor, 1});
        for (size_t i = 0; i < a.size(); ++i) {
          const float sum = HalfToFloat(a[i]) * weight + HalfToFloat(b[i]);
          ASSERT_EQ(out[i], FloatToHalf(static_cast<float>(sum * factor)));
        }
      }
    }
  }
}

TEST(SumsConvertOnTheirWayAtEveryLevel) {
  std::mt19937 random(31);
  std::vector<uint16_t> a(1001), b(1001), out(1001);
  std::vector<float> wide(1001);
  for (SimdLevel level : SimdLevels()) {
    const ReduceKernels* kernels = FindReduceKernels(DataType::kFloat16, level);
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = Random<Float16>(random).bits;
      b[i] = Random<Float16>(random).bits;
    }
    kernels->widening_sum(wide.data(), a.data(), b.data(), 1001, Scale());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(wide[i], HalfToFloat(a[i]) + HalfToFloat(b[i]));
    }
    for (double factor : {1.0, 0.25, 1.0 / 3.0}) {
      kernels->narrowing_sum(out.data(), wide.data(), wide.data(), 1001, Scale{factor, 1});
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(out[i], FloatToHalf(static_cast<float>((wide[i] + wide[i]) * factor)));
      }
    }
  }
}

// In the canonical order.
uint16_t SumOf(const Reduction& reduction, const std::vector<uint16_t>& inputs, size_t first,
               size_t count, bool finish) {
  if (count == 1) return inputs[first];
  size_t left = 1;
  while (left * 2 < count) left *= 2;
  const uint16_t a = SumOf(reduction, inputs, first, left, false);
  const uint16_t b = SumOf(reduction, inputs, first + left, count - left, false);
  uint16_t sum = 0;
  const Summed summed{static_cast<int>(left), static_cast<int>(count - left)};
  reduction.Combine(&sum, &a, &b, 1, summed, finish);
  return sum;
}

// Halving changes no bits of what could be added without it.
TEST(AveragesOfFloat16AreThoseOfSumsThatAreInRange) {
  std::mt19937 random(29);
  for (int size = 2; size <= 17; ++size) {
    Collective collective;
    collective.kind = CollectiveKind::kAllreduce;
    collective.dtype = DataType::kFloat16;
    collective.op = ReduceOp::kAverage;
    collective.members.resize(size);
    const Reduction halved = ResolveReduction(collective);
    Reduction whole = halved;
    whole.most_halvings = 0;
    for (int i = 0; i < 1000; ++i) {
      std::vector<uint16_t> inputs(size);
      for (uint16_t& input : inputs) input = Random<Float16>(random).bits;
      ASSERT_EQ(SumOf(halved, inputs, 0, size, true), SumOf(whole, inputs, 0, size, true));
    }
  }
}

TEST(SumsOfFloat16AreHalvedAsOftenAsTheirFactorHalves) {
  Collective collective;
  collective.kind = CollectiveKind::kAllreduce;
  collective.dtype = DataType::kFloat16;
  collective.members.resize(8);
  const auto halvings = [&](double postscale, int members) {
    collective.postscale = postscale;
    return ResolveReduction(collective).Halvings(members);
  };
  EXPECT_EQ(halvings(1.0, 8), 0);
  EXPECT_EQ(halvings(3.0, 8), 0);
  EXPECT_EQ(halvings(0.5, 8), 1);
  EXPECT_EQ(halvings(-0.3, 8), 2);
  EXPECT_EQ(halvings(0.125, 4), 2);
  EXPECT_EQ(halvings(0.125, 5), 3);
  EXPECT_EQ(halvings(0.0, 8), 3);
  collective.dtype = DataType::kBfloat16;
  EXPECT_EQ(halvings(0.125, 8), 0);
}

// The dot products and the result of one Adasum, as bytes.
std::vector<char> AdasumBytes(DataType dtype, SimdLevel level, const std::vector<char>& a,
                              const std::vector<char>& b, int64_t count) {
  const AdasumKernels kernels = FindReduceKernels(dtype, level)->adasum;
  AdasumDots dots;
  kernels.dots(a.data() + 1, b.data() + 1, count, &dots);
  std::vector<char> out(sizeof(dots) + static_cast<size_t>(count * DataTypeSize(dtype)));
  std::memcpy(out.data(), &dots, sizeof(dots));
  kernels.combine(out.data() + sizeof(dots), a.data() + 1, b.data() + 1, count, dots, 0.7);
  return out;
}

TEST(AdasumGivesTheSameBitsAtEveryLevel) {
  for (DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (int64_t count : {0, 1, 7, 8, 9, 255, 256, 257, 1000}) {
      const size_t size = static_cast<size_t>(DataTypeSize(dtype));
      std::vector<char> a(count * size + 1), b(count * size + 1);
      for (int64_t i = 0; i < count; ++i) {
        Store(dtype, a.data() + 1 + i * size, 1.0 / static_cast<double>(i + 3));
        Store(dtype, b.data() + 1 + i * size, 0.3 - static_cast<double>(i % 7) / 9.0);
      }
      const std::vector<char> expected = AdasumBytes(dtype, SimdLevel::kBase, a, b, count);
      for (SimdLevel level : SimdLevels()) {
        ASSERT_TRUE(AdasumBytes(dtype, level, a, b, count) == expected);
      }
    }
  }
  EXPECT_TRUE(FindReduceKernels(DataType::kInt32)->adasum.dots == nullptr);
}

template <typename T>
T ScaledBy(DataType dtype, T value, double factor, int64_t divisor, SimdLevel level) {
  T out{};
  FindReduceKernels(dtype, level)->scale(&out, &value, 1, Scale{factor, divisor});
  return out;
}

TEST(IntegersAreDividedExactlyAndStayInRange) {
  for (SimdLevel level : SimdLevels()) {
    for (int64_t n : {2, 3, 7, 49, 127}) {
      for (int64_t value : {0, 1, -1, 5, -5, 48, 49, 50, -49, 1000000007, -2000000011}) {
        EXPECT_EQ(ScaledBy<int32_t>(DataType::kInt32, static_cast<int32_t>(value), 1.0, n, level),
                  static_cast<int32_t>(value) / static_cast<int32_t>(n));
        const int64_t wide = value * 4000000007;
        EXPECT_EQ(ScaledBy<int64_t>(DataType::kInt64, wide, 1.0, n, level), wide / n);
      }
    }
    EXPECT_EQ(ScaledBy<int8_t>(DataType::kInt8, 100, 2.0, 1, level), 127);
    EXPECT_EQ(ScaledBy<int8_t>(DataType::kInt8, -100, 2.0, 1, level), -128);
    EXPECT_EQ(ScaledBy<uint8_t>(DataType::kUint8, 200, 2.0, 1, level), 255);
    EXPECT_EQ(ScaledBy<uint8_t>(DataType::kUint8, 200, -1.0, 1, level), 0);
    EXPECT_EQ(ScaledBy<int32_t>(DataType::kInt32, 2000000000, 1e9, 1, level), INT32_MAX);
    EXPECT_EQ(ScaledBy<int64_t>(DataType::kInt64, INT64_MAX, 2.0, 1, level), INT64_MAX);
    EXPECT_EQ(ScaledBy<int64_t>(DataType::kInt64, INT64_MIN, 2.0, 1, level), INT64_MIN);
    EXPECT_EQ(ScaledBy<int32_t>(DataType::kInt32, 7, std::nan(""), 1, level), 0);
    EXPECT_EQ(ScaledBy<int32_t>(DataType::kInt32, -7, 0.5, 1, level), -3);
  }
}

// What one rank makes of `value` by a sum over itself.
template <typename T>
T Alone(DataType dtype, T value, double prescale, double postscale, ReduceOp op) {
  Collective collective;
  collective.kind = CollectiveKind::kAllreduce;
  collective.dtype = dtype;
  collective.op = op;
  collective.prescale = prescale;
  collective.postscale = postscale;
  collective.members = {0};
  const Reduction reduction = ResolveReduction(collective);
  for (const Scale& scale : {reduction.before, reduction.after}) {
    if (!scale.identity()) reduction.kernels->scale(&value, &value, 1, scale);
  }
  return value;
}

TEST(FactorsCountInTheTypeOfTheTensor) {
  for (int i = 1; i < 2000; ++i) {
    const float narrow = 1.0f + static_cast<float>(i) * 0.37f;
    const double wide = 1.0 + i * 0.37;
    for (double factor : {0.1, 1.0 / 3.0, 0.7, 1e-3}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        const float expected = narrow * static_cast<float>(factor);
        EXPECT_EQ(Alone(DataType::kFloat32, narrow, 1.0, factor, op), expected);
        EXPECT_EQ(Alone(DataType::kFloat32, narrow, factor, 1.0, op), expected);
        EXPECT_EQ(Alone(DataType::kFloat64, wide, factor, 1.0, op), wide * factor);
        EXPECT_EQ(Alone(DataType::kInt32, i, 1.0, factor, op), static_cast<int>(i * factor));
        const uint16_t half = Float16::FromFloat(narrow).bits;
        const float product = Float16{half}.ToFloat() * static_cast<float>(factor);
        EXPECT_EQ(Alone(DataType::kFloat16, half, 1.0, factor, op),
                  Float16::FromFloat(product).bits);
      }
      EXPECT_EQ(Alone(DataType::kFloat32, narrow, factor, 1.0 / factor, ReduceOp::kSum), narrow);
    }
  }
}

}  // namespace
}  // namespace tfring::testing::reduce_kernels_test
