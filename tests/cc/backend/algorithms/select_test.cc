#include "ops/runtime/backend/algorithms/select.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/allgather.h"
#include "ops/runtime/backend/algorithms/allreduce.h"
#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/algorithms/broadcast.h"
#include "ops/runtime/backend/algorithms/gather_scatter.h"
#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"
#include "ops/runtime/backend/algorithms/host_costs.h"
#include "ops/runtime/backend/algorithms/reduce.h"
#include "ops/runtime/backend/algorithms/reducescatter.h"
#include "ops/sim/pricing.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::select_test {
namespace {

// The algorithm that all ranks choose when each contributes `bytes`.
std::string Selected(CollectiveKind kind, int size, int64_t bytes, const Config& config,
                     Connectivity connectivity, const HostLayout& layout = {}) {
  Plan plan;
  plan.kind = kind;
  const size_t members = static_cast<size_t>(size);
  std::set<std::string> names;
  std::vector<Schedule> schedules;
  for (size_t r = 0; r < members; ++r) {
    Result<Schedule> schedule = SelectSchedule(sim::DescribeCollective(plan, members, r, bytes),
                                               config, connectivity, layout);
    names.insert(schedule.ok() ? schedule->algorithm : schedule.status().ToString());
    if (schedule.ok()) schedules.push_back(std::move(*schedule));
  }
  for (Duration end : sim::PriceSchedules(schedules, sim::LinkModel())) {
    if (end == kNever) return "never ends";
  }
  return names.size() == 1 ? *names.begin() : "ranks disagree";
}

size_t StepsOf(int64_t piece_bytes, const Config& config) {
  Plan plan;
  plan.kind = CollectiveKind::kAllreduce;
  Collective collective = sim::DescribeCollective(plan, 4, 1, 16 << 20);
  collective.piece_bytes = piece_bytes;
  return SelectSchedule(collective, config, Connectivity::kFull)->steps.size();
}

TEST(APieceSizeOfThePlanWinsOverTheSetting) {
  Config config;
  const size_t usual = StepsOf(0, config);
  EXPECT_EQ(StepsOf(config.piece_bytes, config), usual);
  EXPECT_TRUE(StepsOf(config.piece_bytes / 4, config) > usual);
  config.piece_bytes /= 4;
  EXPECT_EQ(StepsOf(Config().piece_bytes, config), usual);
}

TEST(SelectionFollowsSizeSettingsAndConnections) {
  Config config;
  const auto reduce = CollectiveKind::kAllreduce;
  const auto full = Connectivity::kFull;
  EXPECT_EQ(Selected(reduce, 4, 4, config, full), "direct_allreduce");
  EXPECT_EQ(Selected(reduce, 2, config.tree_max_bytes, config, full), "direct_allreduce");
  EXPECT_EQ(Selected(reduce, 4, config.tree_max_bytes, config, full), "tree_allreduce");
  EXPECT_EQ(Selected(reduce, 40, 4, config, full), "tree_allreduce");
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config, full), "ring_allreduce");
  EXPECT_EQ(Selected(reduce, 4, 4, config, Connectivity::kRing), "ring_allreduce");
  EXPECT_EQ(Selected(reduce, 4, 4, config, Connectivity::kLine), "line_allreduce");
  EXPECT_CONTAINS(Selected(reduce, 4, 4, config, Connectivity::kNone), "not connected");
  EXPECT_EQ(Selected(reduce, 1, 4, config, full), "copy");
  config.deterministic = true;
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config, full), "two_phase_allreduce");
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config, Connectivity::kRing), "line_allreduce");
  const auto gather = CollectiveKind::kAllgather;
  EXPECT_EQ(Selected(gather, 4, 1 << 8, config, full), "direct_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 18, config, full), "ring_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 8, config, Connectivity::kRing), "ring_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 8, config, Connectivity::kLine), "line_allgather");
  const auto broadcast = CollectiveKind::kBroadcast;
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config, full), "tree_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 20, config, full), "chain_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config, Connectivity::kRing), "chain_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config, Connectivity::kLine), "line_broadcast");
  EXPECT_EQ(Selected(CollectiveKind::kBarrier, 4, 0, config, Connectivity::kNone), "barrier");
}

TEST(SelectionOfEveryKind) {
  Config config;
  const auto full = Connectivity::kFull;
  const auto ring = Connectivity::kRing;
  const auto line = Connectivity::kLine;
  const auto scatter_sum = CollectiveKind::kReducescatter;
  const int64_t large = 4 << 20;
  EXPECT_EQ(Selected(scatter_sum, 4, 16, config, full), "direct_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, large, config, full), "ring_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 2, large, config, full), "direct_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, 16, config, ring), "ring_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, 16, config, line), "line_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 1, 16, config, full), "copy");
  const auto reduce = CollectiveKind::kReduce;
  EXPECT_EQ(Selected(reduce, 4, 64, config, full), "direct_reduce");
  EXPECT_EQ(Selected(reduce, 40, 640, config, full), "tree_reduce");
  EXPECT_EQ(Selected(reduce, 4, 256000, config, full), "tree_reduce");
  EXPECT_EQ(Selected(reduce, 4, large, config, full), "chain_reduce");
  EXPECT_EQ(Selected(reduce, 4, 64, config, ring), "chain_reduce");
  EXPECT_EQ(Selected(reduce, 4, 64, config, line), "line_reduce");
  config.deterministic = true;
  EXPECT_EQ(Selected(scatter_sum, 4, large, config, full), "direct_reducescatter");
  EXPECT_EQ(Selected(reduce, 4, large, config, full), "two_phase_reduce");
  EXPECT_EQ(Selected(CollectiveKind::kGather, 4, 36, config, full), "direct_gather");
  EXPECT_EQ(Selected(CollectiveKind::kGather, 4, 36, config, ring), "line_gather");
  EXPECT_EQ(Selected(CollectiveKind::kScatter, 4, 36, config, full), "direct_scatter");
  EXPECT_EQ(Selected(CollectiveKind::kScatter, 4, 36, config, line), "line_scatter");
  EXPECT_EQ(Selected(CollectiveKind::kAlltoall, 4, 36, config, full), "pairwise_alltoall");
  EXPECT_CONTAINS(Selected(CollectiveKind::kAlltoall, 4, 36, config, ring), "ranks 0-3 are not");
  EXPECT_CONTAINS(Selected(CollectiveKind::kAlltoall, 4, 36, config, line), "alltoall needs");
  EXPECT_EQ(Selected(CollectiveKind::kSendRecv, 2, 36, config, full), "send_recv");
  EXPECT_CONTAINS(Selected(CollectiveKind::kSendRecv, 2, 36, config, Connectivity::kNone),
                  "ranks 0, 1 are not connected");
}

std::string OverHosts(const std::vector<int>& host_of, int64_t bytes, const Config& config) {
  return Selected(CollectiveKind::kAllreduce, static_cast<int>(host_of.size()), bytes, config,
                  Connectivity::kFull, HostLayout(host_of));
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
  EXPECT_EQ(Selected(CollectiveKind::kAllreduce, 4, large, config, Connectivity::kRing,
                     HostLayout({0, 0, 1, 1})),
            "ring_allreduce");
  EXPECT_EQ(Selected(CollectiveKind::kAllgather, 4, large, config, Connectivity::kFull,
                     HostLayout({0, 0, 1, 1})),
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
  EXPECT_EQ(OverHosts(alone, bytes, config), "hierarchical_halving");
  config.network_latency = 1000;
  config.network_bytes_per_second = int64_t{1} << 40;  // messages do, and then hops
  EXPECT_EQ(OverHosts(alone, 4 << 10, config), "hierarchical_doubling");
  config.network_latency = kSecond / 1000;  // hops and bytes do
  config.network_bytes_per_second = 1 << 26;
  EXPECT_EQ(OverHosts(alone, bytes, config), "hierarchical_allreduce");
}

TEST(HostsArePairedOnlyWhereAllCanBe) {
  Config config;
  config.network_latency = 0;
  config.network_bytes_per_second = 1 << 20;
  const int64_t bytes = 400 << 10;
  EXPECT_EQ(OverHosts({0, 1, 2, 3}, bytes, config), "hierarchical_halving");
  for (int hosts : {2, 3, 5, 6, 7}) {
    std::vector<int> alone(hosts);
    std::iota(alone.begin(), alone.end(), 0);
    const std::string chosen = OverHosts(alone, bytes, config);
    EXPECT_TRUE(chosen != "hierarchical_halving" && chosen != "hierarchical_doubling");
  }
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
    for (BetweenHosts between : {BetweenHosts::kExchange, BetweenHosts::kTwoPhases,
                                 BetweenHosts::kDoubling, BetweenHosts::kHalving}) {
      const bool pairs = between == BetweenHosts::kDoubling || between == BetweenHosts::kHalving;
      if (pairs && layout.hosts() == 3) continue;
      const HierarchicalPlan plan{between, 2};
      const auto made = [&](const ReduceShape& shape) {
        return HierarchicalAllreduce(shape, layout, plan);
      };
      EXPECT_TRUE(near(most_out(made), LoadOf(layout, bytes, plan).bytes_between));
    }
  }
}

TEST(MembersAgreeHowTheyAreConnected) {
  EXPECT_TRUE(ConnectivityOf({3, 9, 70}, 100, true) == Connectivity::kFull);
  std::vector<Rank> all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_TRUE(ConnectivityOf(all, 100, false) == Connectivity::kRing);
  EXPECT_TRUE(ConnectivityOf({4, 5, 6}, 100, false) == Connectivity::kLine);
  EXPECT_TRUE(ConnectivityOf({4, 5}, 100, false) == Connectivity::kFull);
  EXPECT_TRUE(ConnectivityOf({0, 99}, 100, false) == Connectivity::kFull);
  EXPECT_TRUE(ConnectivityOf({4, 6}, 100, false) == Connectivity::kNone);
  EXPECT_TRUE(ConnectivityOf({0, 98, 99}, 100, false) == Connectivity::kLine);
  EXPECT_TRUE(ConnectivityOf({0, 1, 97, 99}, 100, false) == Connectivity::kNone);
  EXPECT_TRUE(ConnectivityOf({1, 98, 99}, 100, false) == Connectivity::kNone);
  // One rank has joined; then another.
  all.erase(all.begin() + 37);
  EXPECT_TRUE(ConnectivityOf(all, 100, false) == Connectivity::kLine);
  all.erase(all.begin() + 37);
  EXPECT_TRUE(ConnectivityOf(all, 100, false) == Connectivity::kLine);
  all.erase(all.begin() + 60);
  EXPECT_TRUE(ConnectivityOf(all, 100, false) == Connectivity::kNone);
}

// What every rank chooses in a ring of six that some have left.
std::vector<Schedule> AroundTheGap(const Collective& base, const Config& config) {
  std::vector<Schedule> schedules;
  const Connectivity connectivity = ConnectivityOf(base.members, 6, false);
  EXPECT_TRUE(connectivity == Connectivity::kLine);
  for (size_t m = 0; m < base.members.size(); ++m) {
    Collective own = base;
    own.self = static_cast<int>(m);
    if (!base.block_bytes.empty()) own.buffers[0].input_bytes = base.block_bytes[0][m];
    schedules.push_back(*SelectSchedule(own, config, connectivity));
    for (const Step& step : schedules.back().steps) {
      const Rank distance = std::abs(base.members[step.peer] - base.members[m]);
      if (IsRemote(step)) EXPECT_TRUE(distance == 1 || distance == 5);
    }
  }
  return schedules;
}

TEST(ARingWithAGapIsALine) {
  Config config;
  config.piece_bytes = 64;
  const std::vector<std::vector<Rank>> cases = {{0, 1, 2, 4, 5}, {0, 3, 4, 5}, {0, 1, 5}};
  for (const std::vector<Rank>& members : cases) {
    const int size = static_cast<int>(members.size());
    Collective c;
    c.members = members;
    c.kind = CollectiveKind::kBroadcast;
    c.buffers.push_back({nullptr, nullptr, 500, 500});
    for (c.root = 0; c.root < size; ++c.root) {
      std::vector<SymbolicRank> ranks = Inputs(size, 500);
      for (SymbolicRank& rank : ranks) rank.output.resize(500);
      ASSERT_EQ(PlaySymbolically(AroundTheGap(c, config), 1, false, 5, &ranks), "");
      for (const SymbolicRank& rank : ranks) {
        for (int64_t i = 0; i < 500; ++i) ASSERT_EQ(rank.output[i].tree, Leaf(c.root, i).tree);
      }
    }
    c.kind = CollectiveKind::kAllgather;
    c.root = 0;
    c.block_bytes = {{}};
    for (int m = 0; m < size; ++m) c.block_bytes[0].push_back(m * 7 % 4 * 101);
    ASSERT_EQ(PlayAllgather(AroundTheGap(c, config), c.block_bytes[0]), "");
  }
}

void ExpectNeighbours(const std::vector<Schedule>& schedules, int self, int size, bool around) {
  for (const Schedule& schedule : schedules) {
    for (const Step& step : schedule.steps) {
      const int distance = std::abs(step.peer - self);
      if (IsRemote(step)) EXPECT_TRUE(distance == 1 || (around && distance == size - 1));
    }
  }
}

TEST(LineAndRingSchedulesTalkToNeighboursOnly) {
  const int size = 7;
  const std::vector<int64_t> blocks(size, 48);
  for (int r = 0; r < size; ++r) {
    const ReduceShape shape{r, size, 1000, 4, 64};
    ExpectNeighbours(
        {LineAllreduce(shape), LineAllgather({r, blocks, 16}), LineBroadcast({r, size, 3, 500, 64}),
         LineReducescatter({r, blocks, 4, 16}), LineReduce(shape, 3),
         LineGather({r, 3, blocks, 16}), LineScatter({r, 3, blocks, 16})},
        r, size, false);
    ExpectNeighbours({RingAllreduce(shape), RingAllgather({r, blocks, 16}),
                      ChainBroadcast({r, size, 3, 500, 64}), RingReducescatter({r, blocks, 4, 16}),
                      ChainReduce(shape, 3)},
                     r, size, true);
  }
}

}  // namespace
}  // namespace tfring::testing::select_test
