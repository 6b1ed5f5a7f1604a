#include "ops/runtime/backend/algorithms/member_order.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/select.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::member_order_test {
namespace {

using HostOf = std::vector<int>;  // by position

constexpr int64_t kElements = 840;
constexpr int64_t kBytes = kElements * 4;

// The last four do not have their ranks host by host.
const std::vector<HostOf> kLayouts = {
    {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 1},          {0, 1, 2},
    {0, 1, 0, 1, 0, 1, 0, 1}, {0, 1, 2, 3, 0, 1, 2, 3}, {2, 0, 0, 2, 1, 1, 1}, {0, 1, 1, 1, 0}};

// Rings, chains and lines only.
Config LargeData() {
  Config config;
  config.direct_max_bytes = 0;
  config.tree_max_bytes = 0;
  config.piece_bytes = 64;
  config.hierarchical_allreduce = Hierarchy::kNever;
  return config;
}

Collective Describe(CollectiveKind kind, const HostOf& host_of, int root) {
  const auto size = static_cast<int64_t>(host_of.size());
  Collective collective;
  collective.kind = kind;
  collective.dtype = DataType::kFloat32;
  for (int r = 0; r < size; ++r) collective.members.push_back(r);
  collective.root = root;
  // Uneven, the first and another one empty.
  std::vector<int64_t> blocks;
  for (int64_t m = 0; m < size; ++m) blocks.push_back(m * 7 % 4 * 100);
  collective.block_bytes = {blocks};
  return collective;
}

std::vector<Schedule> OfAll(Collective collective, const HostOf& host_of, const Config& config) {
  const Blocks blocks = collective.block_bytes[0];
  const bool gathers = collective.kind == CollectiveKind::kAllgather;
  const bool scatters = collective.kind == CollectiveKind::kReducescatter;
  std::vector<Schedule> schedules;
  for (size_t r = 0; r < host_of.size(); ++r) {
    collective.self = static_cast<int>(r);
    const int64_t in = gathers ? blocks[r] : scatters ? Sum(blocks) : kBytes;
    const int64_t out = gathers ? Sum(blocks) : scatters ? blocks[r] : kBytes;
    collective.buffers = {{nullptr, nullptr, in, out}};
    schedules.push_back(SelectSchedule(collective, config, HostLayout(host_of)));
  }
  return schedules;
}

// How many streams lead from one host to another one.
size_t StreamsBetween(const std::vector<Schedule>& schedules, const HostOf& host_of) {
  std::set<std::pair<size_t, int>> streams;
  for (size_t r = 0; r < schedules.size(); ++r) {
    for (const Step& step : schedules[r].steps) {
      const bool between = step.kind == StepKind::kSend && host_of[step.peer] != host_of[r];
      if (between) streams.emplace(r, step.peer);
    }
  }
  return streams.size();
}

std::string NameOf(const Schedule& schedule, size_t layout, int root) {
  return std::string(schedule.algorithm) + " on layout " + std::to_string(layout) + ", root " +
         std::to_string(root) + ": ";
}

// Whether all ranks that shall have the sum of all inputs, or a part of it, have it.
std::string PlaySum(const Collective& collective, const std::vector<Schedule>& schedules,
                    uint32_t seed) {
  const bool scatters = collective.kind == CollectiveKind::kReducescatter;
  const bool reduces = collective.kind == CollectiveKind::kReduce;
  const auto size = static_cast<int>(schedules.size());
  const Blocks blocks = collective.block_bytes[0];
  std::vector<SymbolicRank> ranks = Inputs(size, scatters ? Sum(blocks) / 4 : kElements);
  for (int r = 0; r < size; ++r) ranks[r].output.resize(scatters ? blocks[r] / 4 : kElements);
  std::string wrong = PlaySymbolically(schedules, 4, false, seed, &ranks);
  for (int r = 0; r < size; ++r) {
    if (reduces && r != collective.root) continue;
    for (const Symbol& symbol : ranks[r].output) {
      const bool whole = symbol.ranks == (uint64_t{1} << size) - 1 && symbol.finished == 1;
      if (!whole && wrong.empty()) wrong = "rank " + std::to_string(r) + " has another sum";
    }
  }
  return wrong;
}

std::string PlayBroadcast(int root, const std::vector<Schedule>& schedules, uint32_t seed) {
  std::vector<SymbolicRank> ranks = Inputs(static_cast<int>(schedules.size()), kElements);
  for (SymbolicRank& rank : ranks) rank.output.resize(kElements);
  std::string wrong = PlaySymbolically(schedules, 4, false, seed, &ranks);
  for (const SymbolicRank& rank : ranks) {
    for (int64_t i = 0; i < kElements; ++i) {
      if (rank.output[i].tree != Leaf(root, i).tree && wrong.empty()) wrong = "other data";
    }
  }
  return wrong;
}

// With all roots, each host is entered once by a ring, and once by a chain but the one that it
// begins on.
TEST(RingsAndChainsEnterEachHostOnce) {
  uint32_t seed = 0;
  for (size_t at = 0; at < kLayouts.size(); ++at) {
    const HostOf& host_of = kLayouts[at];
    const auto hosts = static_cast<size_t>(HostLayout(host_of).hosts());
    for (int root = 0; root < static_cast<int>(host_of.size()); ++root) {
      for (auto kind :
           {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter, CollectiveKind::kReduce,
            CollectiveKind::kBroadcast, CollectiveKind::kAllgather}) {
        const bool rooted = kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast;
        const Collective collective = Describe(kind, host_of, rooted ? root : 0);
        const std::vector<Schedule> schedules = OfAll(collective, host_of, LargeData());
        const std::string name = NameOf(schedules[0], at, root);
        std::string wrong;
        if (kind == CollectiveKind::kBroadcast) {
          wrong = PlayBroadcast(root, schedules, ++seed);
        } else if (kind == CollectiveKind::kAllgather) {
          wrong = PlayAllgather(schedules, collective.block_bytes[0]);
        } else {
          wrong = PlaySum(collective, schedules, ++seed);
        }
        ASSERT_EQ(name + wrong, name);
        ASSERT_EQ(name + std::to_string(StreamsBetween(schedules, host_of)),
                  name + std::to_string(rooted ? hosts - 1 : hosts));
      }
    }
  }
}

// What ranks get bit by bit does not depend on hosts where sums are canonical.
TEST(CanonicalSumsKeepTheOrderOfPositions) {
  const HostOf in_turns = {0, 1, 0, 1};
  const HostOf one_host = {0, 0, 0, 0};
  for (auto kind : {CollectiveKind::kReducescatter, CollectiveKind::kReduce}) {
    for (const bool small : {true, false}) {
      Config config = LargeData();
      config.deterministic = !small;
      if (small) config.direct_max_bytes = config.tree_max_bytes = 1 << 20;
      const Collective collective = Describe(kind, in_turns, 1);
      std::vector<std::vector<SymbolicRank>> ends;
      for (const HostOf& host_of : {in_turns, one_host}) {
        std::vector<SymbolicRank> ranks = Inputs(4, kElements);
        for (SymbolicRank& rank : ranks) rank.output.resize(kElements);
        ASSERT_EQ(PlaySymbolically(OfAll(collective, host_of, config), 4, false, 3, &ranks), "");
        ends.push_back(ranks);
      }
      for (int64_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(ends[0][1].output[i].tree, ends[1][1].output[i].tree);
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::member_order_test
