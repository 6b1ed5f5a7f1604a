// The fake NCCL's arithmetic and data movement, against sums made here.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/runtime/base/half.h"
#include "tests/cc/fakes/nccl_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_values_test {
namespace {

const FakeNccl& nccl = FakeNccl::Get();

// Small integers, which all types hold exactly, also their sums and products over 4 ranks.
double Value(int rank, size_t i) {
  return static_cast<double>((static_cast<size_t>(rank) * 7 + i * 3) % 4);
}

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>) {
    return T::FromFloat(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>) {
    return static_cast<double>(value.ToFloat());
  } else {
    return static_cast<double>(value);
  }
}

double Expected(int op, int n, size_t i, bool integers) {
  double result = Value(0, i);
  for (int r = 1; r < n; ++r) {
    const double other = Value(r, i);
    result = op == ncclProd  ? result * other
             : op == ncclMax ? std::max(result, other)
             : op == ncclMin ? std::min(result, other)
                             : result + other;
  }
  if (op != ncclAvg) return result;
  return integers ? std::trunc(result / n) : result / n;
}

template <typename T>
void ExpectReduced(const std::vector<T>& got, int op, int n, size_t first) {
  const bool integers = std::is_integral_v<T>;
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = ToDouble(FromDouble<T>(Expected(op, n, first + i, integers)));
    // Three ranks: 1/3 is rounded before the sum.
    const double slack = op == ncclAvg && !integers && n == 3 ? std::fabs(want) / 64 : 0;
    if (std::fabs(ToDouble(got[i]) - want) <= slack) continue;
    EXPECT_EQ(ToDouble(got[i]), want);
    return;
  }
}

template <typename T>
void Reductions(GpuRank& rank, ncclDataType_t dtype) {
  const int n = rank.nranks;
  const size_t count = 37;
  std::vector<T> data(count * static_cast<size_t>(n));
  for (size_t i = 0; i < data.size(); ++i) data[i] = FromDouble<T>(Value(rank.rank, i));
  for (int op = ncclSum; op <= ncclAvg; ++op) {
    const T* input = rank.Put(data);
    void* all = rank.Allocate(data.size() * sizeof(T));
    void* part = rank.Allocate(count * sizeof(T));
    T* in_place = rank.Put(data);
    EXPECT_EQ(nccl.AllReduce(input, all, data.size(), dtype, op, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(nccl.ReduceScatter(input, part, count, dtype, op, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(
        nccl.Reduce(in_place, in_place, data.size(), dtype, op, n - 1, rank.comm, rank.stream),
        ncclSuccess);
    ExpectReduced(rank.Get<T>(all, data.size()), op, n, 0);
    ExpectReduced(rank.Get<T>(part, count), op, n, count * static_cast<size_t>(rank.rank));
    const std::vector<T> reduced = rank.Get<T>(in_place, data.size());
    if (rank.rank == n - 1) {
      ExpectReduced(reduced, op, n, 0);
    } else {
      EXPECT_EQ(std::memcmp(reduced.data(), data.data(), data.size() * sizeof(T)), 0);
    }
  }
}

TEST(EveryTypeAndOperator) {
  for (const int n : {1, 2, 3, 4}) {
    RunNcclRanks(n, true, [](GpuRank& rank) {
      Reductions<int8_t>(rank, ncclInt8);
      Reductions<uint8_t>(rank, ncclUint8);
      Reductions<int32_t>(rank, ncclInt32);
      Reductions<uint32_t>(rank, ncclUint32);
      Reductions<int64_t>(rank, ncclInt64);
      Reductions<uint64_t>(rank, ncclUint64);
      Reductions<Float16>(rank, ncclFloat16);
      Reductions<Bfloat16>(rank, ncclBfloat16);
      Reductions<float>(rank, ncclFloat32);
      Reductions<double>(rank, ncclFloat64);
    });
  }
}

TEST(NegativeIntegersAverageTowardsZeroAndSumsWrap) {
  RunNcclRanks(2, true, [](GpuRank& rank) {
    const std::vector<int8_t> data =
        rank.rank == 0 ? std::vector<int8_t>{-7, 7, 100} : std::vector<int8_t>{0, 0, 100};
    int8_t* average = rank.Put(data);
    int8_t* sum = rank.Put(data);
    EXPECT_EQ(nccl.AllReduce(average, average, 2, ncclInt8, ncclAvg, rank.comm, rank.stream), 0);
    EXPECT_EQ(nccl.AllReduce(sum, sum, 3, ncclInt8, ncclSum, rank.comm, rank.stream), 0);
    EXPECT_TRUE((rank.Get<int8_t>(average, 2) == std::vector<int8_t>{-3, 3}));
    EXPECT_TRUE((rank.Get<int8_t>(sum, 3) == std::vector<int8_t>{-7, 7, -56}));
  });
}

TEST(SixteenBitSumsAreRoundedAtEachStep) {
  RunNcclRanks(3, true, [](GpuRank& rank) {
    // 2048 + 1 is 2048 in float16: in one step from float32 the sum would be 2050.
    float value = rank.rank == 1 ? 2048.0f : 1.0f;
    const Float16* input = rank.Put(std::vector<Float16>{Float16::FromFloat(value)});
    void* output = rank.Allocate(2);
    EXPECT_EQ(nccl.AllReduce(input, output, 1, ncclFloat16, ncclSum, rank.comm, rank.stream), 0);
    EXPECT_EQ(rank.Get<Float16>(output, 1)[0].ToFloat(), 2048.0f);
  });
}

// As in real rings: with other elements in front an element's sum has other bits.
TEST(TheOrderOfASumDependsOnThePlaceInTheCall) {
  RunNcclRanks(3, true, [](GpuRank& rank) {
    const float value = std::vector<float>{1e8f, 1.0f, -1e8f}[static_cast<size_t>(rank.rank)];
    const auto sums = [&](size_t count) {
      const float* input = rank.Put(std::vector<float>(count, value));
      void* output = rank.Allocate(4 * count);
      EXPECT_EQ(nccl.AllReduce(input, output, count, ncclFloat32, ncclSum, rank.comm, rank.stream),
                0);
      return rank.Get<float>(output, count);
    };
    EXPECT_TRUE(sums(1) == (std::vector<float>{0}));
    EXPECT_TRUE(sums(3) == (std::vector<float>{0, 1, 0}));
  });
}

// More than one piece of the fake's, an odd rest.
TEST(LargeDataInPieces) {
  RunNcclRanks(3, true, [](GpuRank& rank) {
    const size_t count = 1000003;
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(Value(rank.rank, i));
    const float* input = rank.Put(data);
    void* sum = rank.Allocate(count * 4);
    auto* gathered = static_cast<float*>(rank.Allocate(count * 12));
    EXPECT_EQ(nccl.GroupStart(), 0);
    EXPECT_EQ(nccl.AllReduce(input, sum, count, ncclFloat32, ncclSum, rank.comm, rank.stream), 0);
    EXPECT_EQ(nccl.AllGather(input, gathered, count, ncclFloat32, rank.comm, rank.stream), 0);
    EXPECT_EQ(nccl.GroupEnd(), 0);
    ExpectReduced(rank.Get<float>(sum, count), ncclSum, 3, 0);
    for (int r = 0; r < 3; ++r) {
      const auto block = rank.Get<float>(gathered + static_cast<size_t>(r) * count, count);
      EXPECT_EQ(block[count - 1], static_cast<float>(Value(r, count - 1)));
      EXPECT_EQ(block[12345], static_cast<float>(Value(r, 12345)));
    }
    EXPECT_EQ(nccl.Broadcast(sum, gathered, count, ncclFloat32, 1, rank.comm, rank.stream), 0);
    EXPECT_TRUE(rank.Get<float>(gathered, count) == rank.Get<float>(sum, count));
  });
}

// Alltoallv as its users write it: one group, every pair, itself too, different sizes, none at all.
TEST(TransfersInAGroup) {
  RunNcclRanks(3, true, [](GpuRank& rank) {
    const auto size = [](int from, int to) {
      return static_cast<size_t>((from * 5 + to * 3) % 4) * 150000;
    };
    std::vector<void*> in;
    std::vector<void*> out;
    EXPECT_EQ(nccl.GroupStart(), 0);
    for (int peer = 0; peer < 3; ++peer) {
      out.push_back(rank.Put(std::vector<int32_t>(size(rank.rank, peer), rank.rank * 10 + peer)));
      in.push_back(rank.Allocate(size(peer, rank.rank) * 4));
      EXPECT_EQ(
          nccl.Send(out.back(), size(rank.rank, peer), ncclInt32, peer, rank.comm, rank.stream), 0);
      EXPECT_EQ(
          nccl.Recv(in.back(), size(peer, rank.rank), ncclInt32, peer, rank.comm, rank.stream), 0);
    }
    EXPECT_EQ(nccl.GroupEnd(), 0);
    for (int peer = 0; peer < 3; ++peer) {
      const size_t n = size(peer, rank.rank);
      EXPECT_TRUE(rank.Get<int32_t>(in[static_cast<size_t>(peer)], n) ==
                  std::vector<int32_t>(n, peer * 10 + rank.rank));
    }
  });
  EXPECT_EQ(nccl.Count("mismatches"), 0);
}

}  // namespace
}  // namespace tfring::testing::nccl_values_test
