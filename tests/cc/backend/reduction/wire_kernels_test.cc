#include "ops/runtime/backend/reduction/wire_kernels.h"

#include <cstring>
#include <random>
#include <vector>

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "ops/runtime/base/half.h"
#include "tests/cc/backend/simd_levels.h"
#include "tests/cc/test.h"

namespace tfring::testing::wire_kernels_test {
namespace {

uint16_t Narrowed(DataType dtype, uint32_t bits) {
  const float value = FloatFromBits(bits);
  return dtype == DataType::kFloat16 ? FloatToHalf(value) : FloatToBfloat(value);
}

uint32_t Widened(DataType dtype, uint16_t bits) {
  return FloatBits(dtype == DataType::kFloat16 ? HalfToFloat(bits) : BfloatToFloat(bits));
}

// Random bits, and all that lie beside the bounds of both 16-bit floats.
std::vector<uint32_t> Samples() {
  std::vector<uint32_t> bits;
  for (uint32_t half = 0; half < 0x10000; half += 7) {
    for (uint32_t wide : {half << 16, FloatBits(HalfToFloat(static_cast<uint16_t>(half)))}) {
      for (uint32_t beside : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xfffu, 0x1000u, 0x1001u}) {
        bits.push_back(wide + beside);
        bits.push_back(wide - beside);
      }
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) bits.push_back(static_cast<uint32_t>(random()));
  return bits;
}

TEST(AllInstructionSetsConvertAsTheScalarFunctionsDo) {
  const std::vector<uint32_t> samples = Samples();
  const auto count = static_cast<int64_t>(samples.size());
  for (SimdLevel level : SimdLevels()) {
    for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
      const WireKernels& kernels = FindReduceKernels(dtype, level)->wire;
      std::vector<uint16_t> narrow(samples.size());
      std::vector<uint32_t> round = samples;
      kernels.narrow(narrow.data(), samples.data(), count);
      kernels.round(round.data(), round.data(), count);
      bool right = true;
      for (size_t i = 0; i < samples.size(); ++i) {
        right &= narrow[i] == Narrowed(dtype, samples[i]);
        right &= round[i] == Widened(dtype, narrow[i]);
      }
      EXPECT_TRUE(right);
    }
  }
}

TEST(Every16BitFloatSurvivesTheWayThere) {
  std::vector<uint16_t> all(0x10000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (SimdLevel level : SimdLevels()) {
    for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
      const WireKernels& kernels = FindReduceKernels(dtype, level)->wire;
      std::vector<uint32_t> wide(all.size());
      std::vector<uint16_t> back(all.size());
      kernels.widen(wide.data(), all.data(), static_cast<int64_t>(all.size()));
      kernels.narrow(back.data(), wide.data(), static_cast<int64_t>(all.size()));
      bool right = true;
      for (size_t i = 0; i < all.size(); ++i) {
        const float value = FloatFromBits(wide[i]);
        right &= wide[i] == Widened(dtype, all[i]);
        right &= value != value || back[i] == all[i];  // a signaling NaN becomes a quiet one
      }
      EXPECT_TRUE(right);
    }
  }
}

TEST(AddressesNeedNoAlignment) {
  std::vector<char> wide(400);
  std::vector<char> narrow(200);
  for (SimdLevel level : SimdLevels()) {
    const WireKernels& kernels = FindReduceKernels(DataType::kBfloat16, level)->wire;
    for (int64_t count : {0, 1, 7, 16, 33, 64}) {
      for (int shift : {0, 1, 3, 5}) {
        wide.assign(wide.size(), 'w');
        narrow.assign(narrow.size(), 'n');
        for (int64_t i = 0; i < count; ++i) {
          const float value = 1.0F + static_cast<float>(i);
          std::memcpy(&wide[shift + 4 * i], &value, 4);
        }
        const std::vector<char> before = wide;
        kernels.narrow(&narrow[shift], &wide[shift], count);
        EXPECT_EQ(narrow[shift + 2 * count], 'n');
        wide.assign(wide.size(), 'w');
        kernels.widen(&wide[shift], &narrow[shift], count);
        EXPECT_TRUE(wide == before);
      }
    }
  }
}

TEST(OnlySixteenBitFloatsGoOverAWire) {
  EXPECT_TRUE(FindReduceKernels(DataType::kFloat32)->wire.narrow == nullptr);
  EXPECT_TRUE(FindReduceKernels(DataType::kInt32)->wire.narrow == nullptr);
}

}  // namespace
}  // namespace tfring::testing::wire_kernels_test
