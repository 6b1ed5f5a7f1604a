#include "ops/gpu/pack/pack_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/gpu/pack/fake_device.h"
#include "tests/cc/test.h"

namespace tfring::testing::pack_kernels_test {
namespace {

using Bytes = std::vector<char>;

constexpr double kFactors[] = {1.0, 0.5, 1.0 / 3.0, 3.0};
constexpr DataType kFloat = DataType::kFloat32;

// What the CPU makes of the bytes.
Bytes OfCpu(const Bytes& bytes, DataType dtype, Scale scale) {
  Bytes scaled = bytes;
  const int64_t count = static_cast<int64_t>(bytes.size()) / DataTypeSize(dtype);
  if (!scale.identity()) {
    FindReduceKernels(dtype)->scale(scaled.data(), bytes.data(), count, scale);
  }
  return scaled;
}

Bytes RandomBytes(size_t size, std::mt19937* random) {
  Bytes bytes(size);
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

// Where the bytes of a tensor go in device memory, between guards.
struct Row {
  Bytes in;
  Bytes expected;
  char* src = nullptr;
  char* dst = nullptr;
};

constexpr int64_t kGuard = 16;

// Launches all rows at once and compares them with what is expected of them, and what is around
// them with what was there. The text of the first difference.
std::string Launched(FakeDevice* gpu, std::vector<Row>* rows, DataType dtype, Scale scale) {
  std::vector<PackItem> items;
  for (Row& row : *rows) {
    std::copy(row.in.begin(), row.in.end(), gpu->View(row.src, row.in.size()));
    const int64_t size = static_cast<int64_t>(row.expected.size());
    if (row.src != row.dst) {
      std::memset(gpu->View(row.dst - kGuard, size + 2 * kGuard), 0x77, size + 2 * kGuard);
    }
    items.push_back({row.src, row.dst, size / DataTypeSize(dtype)});
  }
  const Status status = gpu->kernels().Launch(gpu->stream(), items, dtype, scale);
  if (!status.ok()) return status.ToString();
  if (!gpu->Finish()) return "the stream did not finish";
  for (size_t r = 0; r < rows->size(); ++r) {
    const Row& row = (*rows)[r];
    const int64_t size = static_cast<int64_t>(row.expected.size());
    const std::string where = std::string(DataTypeName(dtype)) + " times " +
                              std::to_string(scale.factor) + ", row " + std::to_string(r) + " of " +
                              std::to_string(size) + " bytes";
    if (!std::equal(row.expected.begin(), row.expected.end(), gpu->View(row.dst, size))) {
      return where;
    }
    if (row.src == row.dst) continue;
    const char* around = gpu->View(row.dst - kGuard, size + 2 * kGuard);
    for (int64_t i = 0; i < kGuard; ++i) {
      if (around[i] != 0x77 || around[kGuard + size + i] != 0x77) return where + ": guards";
    }
  }
  return "";
}

Row MakeRow(FakeDevice* gpu, Bytes in, DataType dtype, Scale scale, int src_offset,
            int dst_offset) {
  Row row;
  row.expected = OfCpu(in, dtype, scale);
  row.src = gpu->Allocate(static_cast<int64_t>(in.size()) + 1, src_offset);
  row.dst =
      gpu->Allocate(static_cast<int64_t>(row.expected.size()) + 2 * kGuard, kGuard + dst_offset);
  row.in = std::move(in);
  return row;
}

TEST(EveryTypeFactorSizeAndAlignmentGivesTheBitsOfTheCpu) {
  std::mt19937 random(5);
  for (DataType dtype : kReducibleTypes) {
    for (double factor : kFactors) {
      FakeDevice gpu;
      const Scale scale{factor, 1};
      std::vector<Row> rows;
      int turn = 0;
      // Up to several blocks, which have at most 16,384 elements.
      for (int64_t elements : {0, 1, 2, 7, 31, 64, 1023, 4097, 33333}) {
        for (int repeat = 0; repeat < (elements < 100 ? 20 : 3); ++repeat) {
          Bytes in = RandomBytes(static_cast<size_t>(elements * DataTypeSize(dtype)), &random);
          const int offset = turn++;
          rows.push_back(MakeRow(&gpu, std::move(in), dtype, scale, offset % 17,
                                 repeat % 2 == 0 ? offset % 17 : (offset * 7) % 19));
        }
      }
      ASSERT_EQ(Launched(&gpu, &rows, dtype, scale), "");
      EXPECT_EQ(gpu.fake().Count("launches"), 1);
    }
  }
}

// Bits where rounding, overflow and special values are: all 16-bit patterns as they are, and as the
// leading half of a float32 with the trailing bits around a tie.
Bytes HardValues(DataType dtype) {
  Bytes bytes;
  const auto add = [&bytes](auto value) {
    const char* data = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), data, data + sizeof(value));
  };
  for (uint32_t pattern = 0; pattern < 1 << 16; ++pattern) {
    if (DataTypeSize(dtype) == 2) add(static_cast<uint16_t>(pattern));
    if (dtype == kFloat && pattern % 3 == 0) {
      for (uint32_t tail : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u}) {
        add(pattern << 16 | tail);
      }
    }
    if (dtype == DataType::kFloat64 && pattern % 3 == 0) {
      for (uint64_t tail : {0x0000ull, 0x0001ull, 0x800000000000ull}) {
        add(static_cast<uint64_t>(pattern) << 48 | tail);
      }
    }
  }
  return bytes;
}

TEST(NanInfinitiesSubnormalsAndTiesAreThoseOfTheCpu) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DataType dtype : kReducibleTypes) {
    if (HardValues(dtype).empty()) continue;
    for (double factor : {1.0, 0.5, 1.0 / 3.0, 0.0, -1.0, infinity, 1e-40, 65504.0, 1e300}) {
      FakeDevice gpu;
      const Scale scale{factor, 1};
      std::vector<Row> rows;
      rows.push_back(MakeRow(&gpu, HardValues(dtype), dtype, scale, 0, 0));
      ASSERT_EQ(Launched(&gpu, &rows, dtype, scale), "");
    }
  }
}

TEST(IntegersAreDividedAndKeptInRangeAsOnTheCpu) {
  std::mt19937 random(6);
  for (DataType dtype : {DataType::kInt8, DataType::kUint8, DataType::kInt32, DataType::kInt64}) {
    for (const Scale& scale :
         {Scale{1.0, 3}, Scale{1e9, 1}, Scale{-0.7, 1}, Scale{2.0, 7}, Scale{std::nan(""), 1}}) {
      FakeDevice gpu;
      std::vector<Row> rows;
      Bytes in = RandomBytes(static_cast<size_t>(999 * DataTypeSize(dtype)), &random);
      rows.push_back(MakeRow(&gpu, std::move(in), dtype, scale, 3, 0));
      ASSERT_EQ(Launched(&gpu, &rows, dtype, scale), "");
    }
  }
}

TEST(ScalingInPlaceTouchesEveryElementOnce) {
  std::mt19937 random(7);
  for (DataType dtype : kReducibleTypes) {
    FakeDevice gpu;
    const Scale scale{0.5, 1};
    std::vector<Row> rows;
    for (int offset : {0, 1, 4, 8}) {
      Bytes in = RandomBytes(static_cast<size_t>(20001 * DataTypeSize(dtype)), &random);
      rows.push_back(MakeRow(&gpu, std::move(in), dtype, scale, offset, 0));
      rows.back().dst = rows.back().src;
    }
    ASSERT_EQ(Launched(&gpu, &rows, dtype, scale), "");
  }
}

TEST(BytesOfEveryTypeAreCopied) {
  std::mt19937 random(8);
  for (int d = 0; d < kNumDataTypes; ++d) {
    const DataType dtype = static_cast<DataType>(d);
    for (bool with_kernels : {true, false}) {
      FakeDevice gpu(with_kernels);
      std::vector<Row> rows;
      for (int i = 0; i < 12; ++i) {
        Bytes in = RandomBytes(static_cast<size_t>(i * 37 * DataTypeSize(dtype)), &random);
        rows.push_back(MakeRow(&gpu, std::move(in), dtype, Scale(), i, 2 * i));
      }
      ASSERT_EQ(Launched(&gpu, &rows, dtype, Scale()), "");
      EXPECT_EQ(gpu.fake().Count("launches"), with_kernels ? 1 : 0);
      EXPECT_EQ(gpu.fake().Count("d2d_copies"), with_kernels ? 0 : 11);  // row 0 is empty
    }
  }
}

TEST(WhatNoKernelScalesIsUnimplemented) {
  FakeDevice gpu(false);
  EXPECT_CONTAINS(gpu.kernels().status().message(), "tfring has no pack kernels for ");
  Status status = gpu.kernels().Launch(gpu.stream(), {}, kFloat, Scale{0.5, 1});
  EXPECT_TRUE(status.code() == StatusCode::kUnimplemented);
  EXPECT_CONTAINS(status.message(), "scales float32: tfring has no pack kernels for ");
  FakeDevice full;
  status = full.kernels().Launch(full.stream(), {}, DataType::kComplex64, Scale{0.5, 1});
  EXPECT_TRUE(status.code() == StatusCode::kUnimplemented);
  EXPECT_CONTAINS(status.message(), "scales complex64");
}

TEST(ThousandsOfTensorsTakeOneLaunchEach) {
  std::mt19937 random(9);
  FakeDevice gpu;
  std::vector<Row> rows;
  const Scale scale{1.0 / 3.0, 1};
  for (int i = 0; i < 3000; ++i) {
    // A few are a hundred times larger than the rest.
    Bytes in = RandomBytes(4 * (i % 500 == 0 ? 50001 : 1 + random() % 700), &random);
    rows.push_back(MakeRow(&gpu, std::move(in), kFloat, scale, 0, 0));
  }
  ASSERT_EQ(Launched(&gpu, &rows, kFloat, scale), "");
  EXPECT_EQ(gpu.fake().Count("launches"), 1);
  EXPECT_EQ(gpu.fake().Count("h2d_copies"), 1);
  EXPECT_EQ(gpu.fake().Count("pageable_copies"), 0);
  EXPECT_EQ(gpu.fake().Count("blocking_calls"), 0);
}

// Tables on their way are not overwritten, however late the device is; later ones use their memory.
TEST(TablesAreKeptUntilTheDeviceIsThrough) {
  for (long seed = 1; seed <= 5; ++seed) {
    FakeDevice gpu;
    std::vector<char*> from, to;
    for (int i = 0; i < 200; ++i) {
      from.push_back(gpu.Allocate(64));
      to.push_back(gpu.Allocate(64 * 8));
      for (int b = 0; b < 64; ++b) gpu.View(from[i], 64)[b] = static_cast<char>(i + b);
    }
    gpu.fake().Set("seed", seed);
    const auto launch = [&](int part) {
      std::vector<PackItem> items;
      for (int i = 0; i < 200; ++i) items.push_back({from[i], to[i] + 64 * part, 64});
      return gpu.kernels().Launch(gpu.stream(), items, DataType::kUint8, Scale());
    };
    gpu.fake().Set("hold", 1);
    for (int part = 0; part < 8; ++part) ASSERT_TRUE(launch(part).ok());
    const long pinned = gpu.fake().Count("live_pinned");
    EXPECT_TRUE(pinned > 1);
    gpu.fake().Set("hold", 0);
    ASSERT_TRUE(gpu.Finish());
    for (int i = 0; i < 200; ++i) {
      for (int part = 0; part < 8; ++part) {
        ASSERT_EQ(std::memcmp(gpu.View(to[i] + 64 * part, 64), gpu.View(from[i], 64), 64), 0);
      }
    }
    for (int part = 0; part < 8; ++part) ASSERT_TRUE(launch(part).ok() && gpu.Finish());
    EXPECT_TRUE(gpu.fake().Count("live_pinned") <= pinned);
  }
}

TEST(ErrorsOfTheDeviceAreReported) {
  std::vector<PackItem> items;
  FakeDevice gpu;
  for (int i = 0; i < 200; ++i) items.push_back({gpu.Allocate(64), gpu.Allocate(64), 16});
  gpu.fake().Inject("out_of_memory", 2);  // the first is the pinned memory, which is tried again
  Status status = gpu.kernels().Launch(gpu.stream(), items, kFloat, Scale{2.0, 1});
  EXPECT_TRUE(status.code() == StatusCode::kResourceExhausted);
  EXPECT_TRUE(gpu.kernels().Launch(gpu.stream(), items, kFloat, Scale{2.0, 1}).ok());
  ASSERT_TRUE(gpu.Finish());
  gpu.fake().Inject("sticky", 1);
  status = gpu.kernels().Launch(gpu.stream(), items, kFloat, Scale{2.0, 1});
  while (status.ok()) {
    EXPECT_TRUE(!gpu.Finish());
    status = gpu.kernels().Launch(gpu.stream(), items, kFloat, Scale{2.0, 1});
  }
  EXPECT_TRUE(status.code() == StatusCode::kInternal);
  EXPECT_CONTAINS(status.message(), "ILLEGAL_ADDRESS");
}

}  // namespace
}  // namespace tfring::testing::pack_kernels_test
