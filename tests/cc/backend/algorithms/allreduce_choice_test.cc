#include "ops/runtime/backend/algorithms/allreduce_choice.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/backend/algorithms/select.h"
#include "tests/cc/test.h"

namespace tfring::testing::allreduce_choice_test {
namespace {

std::vector<int> HostByHost(int hosts, int ranks) {
  std::vector<int> host_of;
  for (int host = 0; host < hosts; ++host) host_of.insert(host_of.end(), ranks, host);
  return host_of;
}

std::string Selected(int size, int64_t bytes, const Config& config, const HostLayout& layout) {
  Collective sum;
  sum.kind = CollectiveKind::kAllreduce;
  sum.dtype = DataType::kFloat32;
  sum.members.resize(size);
  std::iota(sum.members.begin(), sum.members.end(), 0);
  sum.buffers = {{nullptr, nullptr, bytes, bytes}};
  return SelectSchedule(sum, config, layout).algorithm;
}

TEST(TheFirstOptionIsWhatIsSelectedAndTheOthersCostNoLess) {
  for (const Duration latency : {Duration{1000}, Duration{30000}, Duration{10'000'000}}) {
    for (const int hosts : {2, 3, 4, 8, 16}) {
      Config config;
      config.network_latency = latency;
      const HostLayout layout(HostByHost(hosts, 2));
      for (const int64_t bytes : {4, 64 << 10, 1 << 20, 64 << 20}) {
        const auto options = AllreduceOptions(2 * hosts, bytes, config, layout);
        EXPECT_TRUE(options.size() >= 4);
        EXPECT_EQ(Selected(2 * hosts, bytes, config, layout), options[0].name);
        for (const AllreduceOption& option : options) {
          EXPECT_TRUE(option.seconds >= options[0].seconds && option.seconds > 0);
        }
      }
    }
  }
}

// Where hops cost nearly all, a sum of 4 B takes no more of them than it has to.
TEST(SmallSumsTakeOneHopBetweenHostsWhereHopsCostMost) {
  Config config;
  config.network_latency = kSecond / 100;
  for (const int hosts : {2, 4, 8, 16}) {
    for (const int ranks : {1, 4}) {
      const HostLayout layout(HostByHost(hosts, ranks));
      const auto options = AllreduceOptions(hosts * ranks, 4, config, layout);
      EXPECT_TRUE(options[0].seconds < 2 * 0.01);
    }
  }
}

TEST(NothingIsPricedWithinAHostAndNothingSelectedAgainstTheSettings) {
  Config config;
  EXPECT_EQ(AllreduceOptions(4, 4, config, {}).size(), size_t{1});
  const HostLayout two(HostByHost(2, 4));
  config.hierarchical_allreduce = Hierarchy::kNever;
  const auto never = AllreduceOptions(8, 64 << 20, config, two);
  EXPECT_EQ(never.size(), size_t{1});
  EXPECT_EQ(std::string(never[0].name), "ring_allreduce");
  config.hierarchical_allreduce = Hierarchy::kAlways;
  config.network_latency = 0;
  for (const int64_t bytes : {4, 1000, 100'000, 64 << 20}) {
    EXPECT_TRUE(AllreduceOptions(8, bytes, config, two)[0].flat == nullptr);
  }
}

TEST(PricesAreToldInWords) {
  Config config;
  config.network_latency = 2 * kMillisecond;
  const auto lines = AllreducePrices({"a", "a", "b", "b"}, config);
  ASSERT_EQ(lines.size(), size_t{6});
  EXPECT_CONTAINS(lines[0], "2 hosts with 2 ranks each: between hosts 2 ms and 1250 MB/s");
  EXPECT_CONTAINS(lines[1], "4 B: hierarchical_exchange through one rank of each host 2 ms; not ");
  EXPECT_CONTAINS(lines[5], "64 MiB: hierarchical_exchange ");
  EXPECT_TRUE(AllreducePrices({"a", "a"}, config).empty());
}

}  // namespace
}  // namespace tfring::testing::allreduce_choice_test
