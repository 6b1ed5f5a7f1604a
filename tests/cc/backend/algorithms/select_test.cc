#include "ops/runtime/backend/algorithms/select.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/allreduce.h"
#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"
#include "ops/runtime/backend/algorithms/host_costs.h"
#include "ops/runtime/backend/algorithms/moves.h"
#include "ops/runtime/backend/algorithms/reduce.h"
#include "ops/runtime/backend/algorithms/reducescatter.h"
#include "ops/sim/pricing.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::select_test {
namespace {

// The algorithm that all ranks choose when each contributes `bytes`.
std::string Selected(CollectiveKind kind, int size, int64_t bytes, const Config& config,
                     const HostLayout& layout = {}) {
  Plan plan;
  plan.kind = kind;
  const size_t members = static_cast<size_t>(size);
  std::set<std::string> names;
  std::vector<Schedule> schedules;
  for (size_t r = 0; r < members; ++r) {
    schedules.push_back(
        SelectSchedule(sim::DescribeCollective(plan, members, r, bytes), config, layout));
    names.insert(schedules.back().algorithm);
  }
  for (Duration end : sim::PriceSchedules(schedules, sim::LinkModel())) {
    if (end == kNever) return "never ends";
  }
  return names.size() == 1 ? *names.begin() : "ranks disagree";
}

TEST(SelectionFollowsSizeAndSettings) {
  Config config;
  const auto reduce = CollectiveKind::kAllreduce;
  EXPECT_EQ(Selected(reduce, 4, 4, config), "direct_allreduce");
  EXPECT_EQ(Selected(reduce, 2, config.tree_max_bytes, config), "direct_allreduce");
  EXPECT_EQ(Selected(reduce, 4, config.tree_max_bytes, config), "tree_allreduce");
  EXPECT_EQ(Selected(reduce, 40, 4, config), "tree_allreduce");
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config), "ring_allreduce");
  EXPECT_EQ(Selected(reduce, 1, 4, config), "copy");
  config.deterministic = true;
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config), "two_phase_allreduce");
  const auto gather = CollectiveKind::kAllgather;
  EXPECT_EQ(Selected(gather, 4, 1 << 8, config), "direct_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 18, config), "ring_allgather");
  const auto broadcast = CollectiveKind::kBroadcast;
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config), "tree_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 20, config), "chain_broadcast");
}

TEST(SelectionOfEveryKind) {
  Config config;
  const auto scatter_sum = CollectiveKind::kReducescatter;
  const int64_t large = 4 << 20;
  EXPECT_EQ(Selected(scatter_sum, 4, 16, config), "direct_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, large, config), "ring_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 2, large, config), "direct_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 1, 16, config), "copy");
  const auto reduce = CollectiveKind::kReduce;
  EXPECT_EQ(Selected(reduce, 4, 64, config), "direct_reduce");
  EXPECT_EQ(Selected(reduce, 40, 640, config), "tree_reduce");
  EXPECT_EQ(Selected(reduce, 4, 256000, config), "tree_reduce");
  EXPECT_EQ(Selected(reduce, 4, large, config), "chain_reduce");
  config.deterministic = true;
  EXPECT_EQ(Selected(scatter_sum, 4, large, config), "direct_reducescatter");
  EXPECT_EQ(Selected(reduce, 4, large, config), "tree_reduce");
  EXPECT_EQ(Selected(CollectiveKind::kGather, 4, 36, config), "direct_gather");
  EXPECT_EQ(Selected(CollectiveKind::kScatter, 4, 36, config), "direct_scatter");
  EXPECT_EQ(Selected(CollectiveKind::kAlltoall, 4, 36, config), "pairwise_alltoall");
  EXPECT_EQ(Selected(CollectiveKind::kSendRecv, 2, 36, config), "send_recv");
}

std::string OverHosts(const std::vector<int>& host_of, int64_t bytes, const Config& config) {
  return Selected(CollectiveKind::kAllreduce, static_cast<int>(host_of.size()), bytes, config,
                  HostLayout(host_of));
}

TEST(AllreduceOverHostsFollowsLayoutAndSettings) {
  const std::vector<int> two = {0, 0, 0, 0, 1, 1, 1, 1};
  const std::vector<int> in_turns = {0, 1, 0, 1, 0, 1, 0, 1};
  const std::vector<int> four = {0, 0, 1, 1, 2, 2, 3, 3};
  const int64_t large = 64 << 20;
  Config config;
  EXPECT_EQ(OverHosts(two, 4, config), "hierarchical_exchange");
  EXPECT_EQ(OverHosts(in_turns, large, config), "hierarchical_exchange");
  EXPECT_EQ(OverHosts(four, large, config), "hierarchical_allreduce");
  EXPECT_EQ(OverHosts({0, 0, 0, 0}, large, config), "ring_allreduce");
  EXPECT_EQ(Selected(CollectiveKind::kAllgather, 4, large, config, HostLayout({0, 0, 1, 1})),
            "ring_allgather");
  EXPECT_EQ(OverHosts({0, 1, 2, 3}, large, config), "hierarchical_allreduce");
  config.hierarchical_allreduce = Hierarchy::kNever;
  EXPECT_EQ(OverHosts(two, 4, config), "direct_allreduce");
  EXPECT_EQ(OverHosts(two, large, config), "ring_allreduce");
  config.hierarchical_allreduce = Hierarchy::kAuto;
  config.deterministic = true;
  EXPECT_EQ(OverHosts(two, large, config), "hierarchical_exchange");
  EXPECT_EQ(OverHosts(in_turns, large, config), "two_phase_allreduce");
  EXPECT_EQ(OverHosts({0, 0, 0, 1, 1, 1}, large, config), "two_phase_allreduce");
  config.hierarchical_allreduce = Hierarchy::kAlways;
  EXPECT_EQ(OverHosts(in_turns, large, config), "two_phase_allreduce");
}

TEST(TheNetworkOfTheSettingsDecidesBetweenHopsAndBytes) {
  const std::vector<int> alone = {0, 1, 2, 3, 4, 5, 6, 7};
  const int64_t bytes = 200 << 10;
  Config config;
  config.network_latency = kSecond / 10;  // hops cost all
  EXPECT_EQ(OverHosts(alone, bytes, config), "hierarchical_exchange");
  config.network_latency = 0;
  config.network_bytes_per_second = 1 << 20;  // bytes do, and then messages
  EXPECT_EQ(OverHosts(alone, bytes, config), "hierarchical_allreduce");
  config.network_latency = 1000;
  config.network_bytes_per_second = int64_t{1} << 40;  // messages do, and then hops
  EXPECT_EQ(OverHosts(alone, 4 << 10, config), "hierarchical_doubling");
  config.network_latency = kSecond / 1000;  // hops and bytes do
  config.network_bytes_per_second = 1 << 26;
  EXPECT_EQ(OverHosts(alone, bytes, config), "hierarchical_allreduce");
}

TEST(PricesCountWhatTheSchedulesSendBetweenHosts) {
  for (const std::vector<int>& host_of : std::vector<std::vector<int>>{
           {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1}, {0, 1, 2, 2}, {0, 0, 1, 1, 2, 2, 3, 3}}) {
    const HostLayout layout(host_of);
    const int size = static_cast<int>(host_of.size());
    const int64_t elements = 840;
    const auto most_out = [&](const auto& schedule_of) {
      std::vector<double> out(layout.hosts(), 0);
      for (int r = 0; r < size; ++r) {
        for (const Step& step : schedule_of(ReduceShape{r, size, elements, 4, 64}).steps) {
          const bool between = step.kind == StepKind::kSend && host_of[step.peer] != host_of[r];
          if (between) out[layout.HostOf(r)] += static_cast<double>(step.src.bytes);
        }
      }
      return *std::max_element(out.begin(), out.end());
    };
    const auto near = [](double one, double other) { return std::abs(one - other) < 100; };
    const int64_t bytes = elements * 4;
    EXPECT_TRUE(near(most_out(DirectAllreduce), LoadOfDirect(layout, bytes).bytes_between));
    EXPECT_TRUE(near(most_out(TreeAllreduce), LoadOfTree(layout, bytes).bytes_between));
    const auto ring = [&](const ReduceShape& shape) {
      AllreduceOption option;
      option.flat = RingAllreduce;
      return ScheduleOf(option, shape, layout);
    };
    EXPECT_TRUE(near(most_out(ring), LoadOfRing(layout, bytes).bytes_between));
    EXPECT_TRUE(near(most_out(TwoPhaseAllreduce), LoadOfTwoPhases(layout, bytes).bytes_between));
    for (BetweenHosts between :
         {BetweenHosts::kExchange, BetweenHosts::kTwoPhases, BetweenHosts::kDoubling}) {
      if (between == BetweenHosts::kDoubling && layout.hosts() == 3) continue;
      const HierarchicalPlan plan{between, 2};
      const auto made = [&](const ReduceShape& shape) {
        return HierarchicalAllreduce(shape, layout, plan);
      };
      EXPECT_TRUE(near(most_out(made), LoadOf(layout, bytes, plan).bytes_between));
    }
  }
}

// Each hop takes 30 us, and nothing else anything.
double HopsOf(CollectiveKind kind, size_t members, int64_t bytes) {
  sim::LinkModel model;
  model.latency = 30 * kMicrosecond;
  model.bytes_per_second = 1e18;
  model.reduce_bytes_per_second = 1e18;
  Plan plan;
  plan.kind = kind;
  std::vector<Schedule> schedules;
  for (size_t r = 0; r < members; ++r) {
    schedules.push_back(SelectSchedule(sim::DescribeCollective(plan, members, r, bytes), Config()));
  }
  Duration last = 0;
  for (Duration end : sim::PriceSchedules(schedules, model)) last = std::max(last, end);
  return static_cast<double>(last) / static_cast<double>(model.latency);
}

TEST(SmallCollectivesOfManyRanksTakeFewHops) {
  for (int exponent : {7, 10}) {
    const size_t members = size_t{1} << exponent;
    EXPECT_EQ(HopsOf(CollectiveKind::kAllreduce, members, 4), 2 * exponent);
    EXPECT_EQ(HopsOf(CollectiveKind::kReduce, members, 4), exponent);
    EXPECT_EQ(HopsOf(CollectiveKind::kBroadcast, members, 4), exponent);
  }
}

}  // namespace
}  // namespace tfring::testing::select_test
