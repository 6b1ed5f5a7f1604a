// Allreduce on the CPU backend whose data travels in 16 bits between hosts.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/half.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::cpu_backend_wire_test {
namespace {

using Hosts = std::vector<std::string>;          // by rank
using Values = std::vector<std::vector<float>>;  // by rank

class Traffic final : public TrafficSink {
 public:
  void SentTo(Rank to, int64_t bytes) override { sent_ += other_[to] ? bytes : 0; }
  std::vector<bool> other_;  // by rank: on another host
  int64_t sent_ = 0;
};

Config WithWire(DataType dtype) {
  Config config = SmallConfig();
  config.wire_dtype = dtype;
  return config;
}

// Settings under which every algorithm is chosen for one of the sizes and layouts below.
std::vector<Config> Settings(DataType dtype) {
  std::vector<Config> all;
  for (Hierarchy hierarchy : {Hierarchy::kNever, Hierarchy::kAlways}) {
    for (int64_t bytes_per_second : {1 << 12, 1 << 30}) {
      for (Duration latency : {Duration{0}, 100 * kSecond}) {
        Config config = WithWire(dtype);
        config.hierarchical_allreduce = hierarchy;
        config.network_bytes_per_second = bytes_per_second;
        config.network_latency = latency;
        all.push_back(config);
      }
    }
  }
  return Sweep(std::move(all));
}

// Replaces the data of all ranks by its sum, in two tensors, over streams that stop within
// elements; returns what went between hosts.
int64_t Reduce(const Hosts& hosts, const Config& config, Values* data,
               ReduceOp op = ReduceOp::kSum) {
  const int size = static_cast<int>(hosts.size());
  const size_t elements = (*data)[0].size();
  StreamOptions options;
  options.seed = static_cast<uint32_t>(elements) + 1;
  options.capacity = 101;  // no whole number of elements, and less than a piece
  World world(hosts, config, options);
  std::vector<Traffic> traffic(hosts.size());
  for (int r = 0; r < size; ++r) {
    for (const std::string& host : hosts) traffic[r].other_.push_back(host != hosts[r]);
    std::vector<float>& own = (*data)[r];
    Collective sum = Sum(&own, r, size, 1);
    sum.op = op;
    sum.traffic = &traffic[r];
    const auto first = static_cast<int64_t>(elements / 3) * 4;
    const int64_t all = sum.buffers[0].input_bytes;
    char* const bytes = reinterpret_cast<char*>(own.data());
    if (first > 0) {
      sum.buffers = {{bytes, bytes, first, first},
                     {bytes + first, bytes + first, all - first, all - first}};
    }
    world.backend(r).Submit(std::move(sum));
  }
  int64_t sent = 0;
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(world.Wait(r, 1).status.ToString(), "Ok");
    sent += traffic[r].sent_;
  }
  return sent;
}

Values Random(int size, int64_t elements) {
  std::mt19937 random(static_cast<uint32_t>(elements));
  std::uniform_real_distribution<float> values(-2.0F, 3.0F);
  Values data(size);
  for (std::vector<float>& own : data) {
    for (int64_t i = 0; i < elements; ++i) own.push_back(values(random));
  }
  return data;
}

bool SameOnAll(const Values& data) {
  for (const std::vector<float>& own : data) {
    if (std::memcmp(own.data(), data[0].data(), own.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

const std::vector<Hosts> kLayouts = {{"a", "b"},
                                     {"a", "b", "c"},
                                     {"a", "a", "b", "b"},
                                     {"a", "b", "a", "b"},
                                     {"a", "a", "a", "b", "b"},
                                     {"a", "b", "c", "d"},
                                     {"a", "b", "c", "d", "a", "b", "c", "d"},
                                     {"c", "a", "a", "c", "b", "b", "b", "b"}};

// The relative error of rounding once.
double Unit(DataType dtype) { return dtype == DataType::kBfloat16 ? 0x1p-8 : 0x1p-11; }

// An element is rounded at each hop between hosts, one for each rank of a ring at most, and as a
// result.
TEST(AllRanksGetTheSameSumNearTheExactOne) {
  for (DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const Config& config : Settings(dtype)) {
      for (const Hosts& hosts : kLayouts) {
        const int size = static_cast<int>(hosts.size());
        for (int64_t elements : {1, 200, 9001}) {
          const Values inputs = Random(size, elements);
          Values data = inputs;
          Reduce(hosts, config, &data);
          ASSERT_TRUE(SameOnAll(data));
          const double times = size;
          bool near = true;
          for (int64_t i = 0; i < elements; ++i) {
            double sum = 0;
            double magnitude = 0;
            for (const std::vector<float>& own : inputs) {
              sum += own[i];
              magnitude += std::abs(own[i]);
            }
            near &= std::abs(data[0][i] - sum) <= times * 1.01 * Unit(dtype) * magnitude;
          }
          ASSERT_TRUE(near);
        }
      }
    }
  }
}

TEST(TwoHostsAddUpWhatEachHasRounded) {
  const auto rounded = [](float value) { return BfloatToFloat(FloatToBfloat(value)); };
  const Values inputs = Random(4, 5000);
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    Values data = inputs;
    Reduce({"a", "a", "b", "b"}, WithWire(DataType::kBfloat16), &data, op);
    const float factor = op == ReduceOp::kAverage ? 0.25F : 1.0F;
    bool right = true;
    for (size_t i = 0; i < 5000; ++i) {
      const float a = rounded(inputs[0][i] + inputs[1][i]);
      const float b = rounded(inputs[2][i] + inputs[3][i]);
      right &= data[3][i] == (a + b) * factor;
    }
    EXPECT_TRUE(right);
  }
}

TEST(HalfOfTheBytesGoBetweenHosts) {
  for (const Hosts& hosts : kLayouts) {
    for (int64_t elements : {4, 100, 6000}) {
      for (Hierarchy hierarchy : {Hierarchy::kNever, Hierarchy::kAlways}) {
        Config wide = SmallConfig();
        wide.hierarchical_allreduce = hierarchy;
        // Prices must not choose another algorithm.
        wide.network_latency = 0;
        Config narrow = wide;
        narrow.wire_dtype = DataType::kFloat16;
        wide.network_bytes_per_second = 1 << 12;
        narrow.network_bytes_per_second = 1 << 11;
        Values one = Random(static_cast<int>(hosts.size()), elements);
        Values other = one;
        EXPECT_EQ(2 * Reduce(hosts, narrow, &one), Reduce(hosts, wide, &other));
      }
    }
  }
}

TEST(WhatIsTooLargeForFloat16BecomesInfiniteOnAllRanks) {
  Values data(4, std::vector<float>(300, 20000.0F));
  Reduce({"a", "a", "b", "b"}, WithWire(DataType::kFloat16), &data, ReduceOp::kAverage);
  EXPECT_TRUE(SameOnAll(data));
  EXPECT_EQ(data[0][7], 20000.0F);  // 40000 of each host
  for (std::vector<float>& own : data) own.assign(300, 33000.0F);
  Values wide = data;
  Reduce({"a", "a", "b", "b"}, WithWire(DataType::kFloat16), &data, ReduceOp::kAverage);
  EXPECT_TRUE(SameOnAll(data));
  EXPECT_EQ(data[0][7], std::numeric_limits<float>::infinity());
  Reduce({"a", "a", "b", "b"}, WithWire(DataType::kBfloat16), &wide, ReduceOp::kAverage);
  EXPECT_TRUE(std::abs(wide[0][7] - 33000.0F) <= 33000.0F * 0x1p-8F);
}

TEST(NaNArrivesAsNaN) {
  for (DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    Values data(3, std::vector<float>(500, 1.0F));
    uint32_t quiet = 0x7fc00001;  // whose only bit of payload is cut off
    std::memcpy(&data[1][250], &quiet, sizeof(quiet));
    Reduce({"a", "b", "c"}, WithWire(dtype), &data);
    for (const std::vector<float>& own : data) {
      EXPECT_TRUE(std::isnan(own[250]));
      EXPECT_EQ(own[249], 3.0F);
    }
  }
}

TEST(RanksOfOneHostRoundNothing) {
  Values data(3, std::vector<float>(2000, 1.0F + 0x1p-20F));
  Reduce({"a", "a", "a"}, WithWire(DataType::kBfloat16), &data);
  EXPECT_EQ(data[1][1999], 3.0F * (1.0F + 0x1p-20F));
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_wire_test
