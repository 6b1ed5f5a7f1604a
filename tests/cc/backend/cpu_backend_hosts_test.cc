// Allreduce on the CPU backend where ranks are on several hosts.
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::cpu_backend_hosts_test {
namespace {

using Hosts = std::vector<std::string>;  // by rank

// What a rank sends to each other rank.
class Traffic final : public TrafficSink {
 public:
  void SentTo(Rank to, int64_t bytes) override { sent_[to] += bytes; }
  int64_t ToOtherHosts(const Hosts& hosts, Rank self) const {
    int64_t bytes = 0;
    for (const auto& [to, sent] : sent_) bytes += hosts[to] != hosts[self] ? sent : 0;
    return bytes;
  }

 private:
  std::map<Rank, int64_t> sent_;
};

struct Outcome {
  std::vector<std::vector<float>> results;   // by rank
  std::map<std::string, int64_t> bytes_out;  // by host
};

// Sums `elements` of fractions, whose sum depends on the order.
Outcome Sums(const Hosts& hosts, const Config& config, int64_t elements) {
  const int size = static_cast<int>(hosts.size());
  StreamOptions options;
  options.seed = static_cast<uint32_t>(elements + size);
  options.capacity = 100;  // less than a piece
  World world(hosts, config, options);
  Outcome outcome;
  std::vector<Traffic> traffic(hosts.size());
  for (int r = 0; r < size; ++r) {
    std::vector<float> data;
    for (int64_t i = 0; i < elements; ++i) data.push_back(1.0F / static_cast<float>(3 + i * 7 + r));
    outcome.results.push_back(std::move(data));
  }
  for (int r = 0; r < size; ++r) {
    Collective sum = Sum(&outcome.results[r], r, size, 1);
    sum.traffic = &traffic[r];
    world.backend(r).Submit(std::move(sum));
  }
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(world.Wait(r, 1).status.ToString(), "Ok");
    outcome.bytes_out[hosts[r]] += traffic[r].ToOtherHosts(hosts, r);
  }
  return outcome;
}

bool SameBits(const std::vector<float>& one, const std::vector<float>& other) {
  return std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

const std::vector<Hosts> kLayouts = {{"a", "a", "b", "b"},
                                     {"a", "b", "a", "b"},
                                     {"a", "a", "a", "b", "b"},
                                     {"c", "a", "a", "c", "b", "b", "b", "b"}};

TEST(AllRanksOfSeveralHostsGetTheSameSum) {
  Config config = SmallConfig();
  config.hierarchical_allreduce = Hierarchy::kAlways;
  for (const Hosts& hosts : kLayouts) {
    for (int64_t elements : {1, 3, 200, 20011}) {
      const Outcome outcome = Sums(hosts, config, elements);
      for (const std::vector<float>& result : outcome.results) {
        EXPECT_TRUE(SameBits(result, outcome.results[0]));
      }
      for (int64_t i = 0; i < elements; i += 97) {
        double expected = 0;
        for (size_t r = 0; r < hosts.size(); ++r) {
          expected += 1.0 / static_cast<double>(3 + i * 7 + static_cast<int64_t>(r));
        }
        EXPECT_TRUE(std::abs(outcome.results[0][i] - expected) < 1e-5 * expected);
      }
    }
  }
}

TEST(MembersOfAProcessSetAreOnTheHostsOfTheirRanks) {
  const Hosts hosts = {"a", "b", "a", "b", "a"};
  Config config = SmallConfig();
  config.hierarchical_allreduce = Hierarchy::kAlways;
  World world(hosts, config);
  const std::vector<Rank> members = {0, 2, 3, 4};  // three on a, one on b
  std::vector<std::vector<float>> data(members.size(), std::vector<float>(3000, 1.0F));
  std::vector<Traffic> traffic(members.size());
  for (int m = 0; m < 4; ++m) {
    Collective sum = Sum(&data[m], m, 4, 1);
    sum.members = members;
    sum.traffic = &traffic[m];
    world.backend(members[m]).Submit(std::move(sum));
  }
  int64_t bytes_out = 0;
  for (int m = 0; m < 4; ++m) {
    EXPECT_EQ(world.Wait(members[m], 1).status.ToString(), "Ok");
    EXPECT_EQ(data[m], std::vector<float>(3000, 4.0F));
    if (members[m] != 3) bytes_out += traffic[m].ToOtherHosts(hosts, members[m]);
  }
  EXPECT_EQ(bytes_out, 3000 * 4);
}

// Averages float16 that are the same on all ranks.
void AverageEqualHalves(World* world, uint64_t sequence, size_t elements, uint16_t half) {
  const std::vector<uint16_t> same(elements, half);
  std::vector<std::vector<uint16_t>> data(static_cast<size_t>(world->size()), same);
  const int64_t bytes = static_cast<int64_t>(elements) * 2;
  for (int r = 0; r < world->size(); ++r) {
    Collective average;
    average.sequence = sequence;
    average.kind = CollectiveKind::kAllreduce;
    average.dtype = DataType::kFloat16;
    average.op = ReduceOp::kAverage;
    average.self = r;
    average.members = FirstRanks(world->size());
    average.buffers.push_back({data[r].data(), data[r].data(), bytes, bytes});
    world->backend(r).Submit(std::move(average));
  }
  for (int r = 0; r < world->size(); ++r) {
    EXPECT_EQ(world->Wait(r, sequence).status.ToString(), "Ok");
    EXPECT_TRUE(data[r] == same);
  }
}

TEST(AveragesOfExtremeHalvesAreRightOnSeveralHosts) {
  std::vector<Hosts> layouts = kLayouts;
  layouts.push_back({"a", "b", "c", "d"});
  layouts.push_back({"a", "b", "b", "c", "c", "d"});
  for (const Hosts& hosts : layouts) {
    for (const Hierarchy hierarchy : {Hierarchy::kAlways, Hierarchy::kNever}) {
      Config config = SmallConfig();
      config.hierarchical_allreduce = hierarchy;
      World world(hosts, config);
      uint64_t sequence = 0;
      for (const double value : kExtremeHalves) {
        for (const size_t elements : {size_t{3}, size_t{700}, size_t{20011}}) {
          AverageEqualHalves(&world, ++sequence, elements, FloatToHalf(static_cast<float>(value)));
        }
      }
    }
  }
}

TEST(LargeSumsCrossTheNetworkOnceUnlessThatIsSwitchedOff) {
  const Hosts hosts = {"a", "a", "b", "b"};
  Config config = SmallConfig();
  const int64_t elements = 4000;
  for (const auto& [host, bytes] : Sums(hosts, config, elements).bytes_out) {
    EXPECT_EQ(bytes, elements * 4);  // 2 (H-1)/H S
  }
  config.hierarchical_allreduce = Hierarchy::kNever;
  for (const auto& [host, bytes] : Sums(hosts, config, elements).bytes_out) {
    EXPECT_EQ(bytes, elements * 4 * 3 / 2);  // 2 (N-1)/N S
  }
}

TEST(DeterministicSumsDoNotDependOnSizeHostsOrTheHierarchy) {
  Config config = SmallConfig();
  config.deterministic = true;
  for (const Hosts& hosts : kLayouts) {
    Config flat = config;
    flat.hierarchical_allreduce = Hierarchy::kNever;
    const std::vector<float> whole = Sums(hosts, flat, 6000).results[0];
    for (int64_t elements : {1, 200, 6000}) {
      for (Hierarchy hierarchy : {Hierarchy::kAuto, Hierarchy::kAlways}) {
        config.hierarchical_allreduce = hierarchy;
        EXPECT_TRUE(SameBits(Sums(hosts, config, elements).results[0],
                             std::vector<float>(whole.begin(), whole.begin() + elements)));
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_hosts_test
