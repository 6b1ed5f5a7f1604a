#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"

#include <string>
#include <utility>
#include <vector>

#include "ops/sim/pricing.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::hierarchical_allreduce_test {
namespace {

using HostOf = std::vector<int>;  // by position

// `per_host` ranks on each of `hosts` hosts, one host after another.
HostOf SideBySide(int hosts, int per_host) {
  HostOf host_of;
  for (int rank = 0; rank < hosts * per_host; ++rank) host_of.push_back(rank / per_host);
  return host_of;
}

HostOf InTurns(int hosts, int per_host) {
  HostOf host_of;
  for (int rank = 0; rank < hosts * per_host; ++rank) host_of.push_back(rank % hosts);
  return host_of;
}

// The sanitizers make large layouts slow, and see nothing there that small ones do not show.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMostHosts = 3;
constexpr int kMostPerHost = 3;
#else
constexpr int kMostHosts = 8;
constexpr int kMostPerHost = 8;
#endif

std::vector<HostOf> Layouts() {
  std::vector<HostOf> all;
  for (int hosts = 2; hosts <= kMostHosts; ++hosts) {
    for (int per_host : {1, 2, 3, 4, 8}) {
      if (per_host > kMostPerHost) continue;
      all.push_back(SideBySide(hosts, per_host));
      if (per_host > 1) all.push_back(InTurns(hosts, per_host));
    }
  }
  all.push_back({0, 0, 1});
  all.push_back({0, 1, 1});
  all.push_back({0, 0, 0, 1, 1});
  all.push_back({3, 1, 1, 3, 0, 1, 1, 3, 0});
  all.push_back({0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2});
  all.push_back({0, 1, 2, 2, 1, 1, 0, 1, 1, 2});
  return all;
}

constexpr const char* kNames[] = {"exchange", "two phases", "doubling"};

// What can be done between so many hosts.
std::vector<BetweenHosts> Ways(int hosts) {
  std::vector<BetweenHosts> ways = {BetweenHosts::kExchange, BetweenHosts::kTwoPhases};
  if ((hosts & (hosts - 1)) == 0) ways.push_back(BetweenHosts::kDoubling);
  return ways;
}

std::string Name(const HostOf& host_of, const HierarchicalPlan& plan, int64_t elements) {
  std::string name = kNames[static_cast<int>(plan.between)];
  name += ", " + std::to_string(plan.workers) + " workers, " + std::to_string(elements) +
          " elements, ranks on hosts";
  for (int host : host_of) name += " " + std::to_string(host);
  return name + ": ";
}

std::vector<Schedule> OfAll(const HostOf& host_of, const HierarchicalPlan& plan, int64_t elements,
                            int64_t piece_bytes) {
  const HostLayout layout(host_of);
  const int size = static_cast<int>(host_of.size());
  std::vector<Schedule> schedules;
  for (int r = 0; r < size; ++r) {
    schedules.push_back(HierarchicalAllreduce({r, size, elements, 4, piece_bytes}, layout, plan));
  }
  return schedules;
}

Symbol CanonicalSum(std::vector<Symbol> level) {
  while (level.size() > 1) {
    std::vector<Symbol> above;
    for (size_t k = 0; k + 1 < level.size(); k += 2) {
      above.push_back(Combined(level[k], level[k + 1]));
    }
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  return level[0];
}

// In canonical order within each host, and then over the hosts.
Symbol SumByHost(const HostLayout& layout, int64_t element) {
  std::vector<Symbol> sums;
  for (int host = 0; host < layout.hosts(); ++host) {
    std::vector<Symbol> leaves;
    for (int position : layout.PositionsOn(host)) leaves.push_back(Leaf(position, element));
    sums.push_back(CanonicalSum(std::move(leaves)));
  }
  return CanonicalSum(std::move(sums));
}

void ExpectSums(const HostOf& host_of, const HierarchicalPlan& plan, int64_t elements,
                int64_t piece_bytes, uint32_t seed) {
  const HostLayout layout(host_of);
  const int size = static_cast<int>(host_of.size());
  std::vector<SymbolicRank> ranks = Inputs(size, elements);
  for (SymbolicRank& rank : ranks) rank.output.resize(elements);
  const std::string name = Name(host_of, plan, elements);
  ASSERT_EQ(name + PlaySymbolically(OfAll(host_of, plan, elements, piece_bytes), 4, seed % 2 == 1,
                                    seed, &ranks),
            name);
  bool right = true;
  for (int64_t i = 0; i < elements; ++i) {
    const Symbol expected = SumByHost(layout, i);
    for (int r = 0; r < size; ++r) {
      right &= IsFinished(ranks[r].output[i], expected);
    }
  }
  ASSERT_EQ(name + (right ? "" : "a wrong sum"), name);
}

// Every element is finished once on the ranks that add it up, and arrives finished elsewhere.
TEST(HierarchicalAllreduceAddsUpInOneOrderOnAllLayouts) {
  uint32_t seed = 0;
  for (const HostOf& host_of : Layouts()) {
    for (BetweenHosts between : Ways(HostLayout(host_of).hosts())) {
      for (int workers : {1, 2, 64}) {
        const auto size = static_cast<int64_t>(host_of.size());
        const bool many = size > 24;  // which take long
        for (int64_t elements : {int64_t{0}, int64_t{1}, size - 1, size + 1, int64_t{523}}) {
          if (many && (elements < size || workers == 2)) continue;
          ExpectSums(host_of, {between, workers}, many ? size + 1 : elements, 100, ++seed);
        }
      }
    }
  }
}

// What the ranks of each host send to other hosts.
std::vector<int64_t> BytesOut(const HostOf& host_of, const std::vector<Schedule>& schedules) {
  const HostLayout layout(host_of);
  std::vector<int64_t> bytes(layout.hosts(), 0);
  for (size_t r = 0; r < schedules.size(); ++r) {
    const int here = layout.HostOf(static_cast<int>(r));
    for (const Step& step : schedules[r].steps) {
      const bool out = step.kind == StepKind::kSend && layout.HostOf(step.peer) != here;
      if (out) bytes[here] += step.src.bytes;
    }
  }
  return bytes;
}

TEST(AHostSendsAsLittleAsAnyAllreduceCan) {
  const int64_t elements = 840 * 8;  // a multiple of every number of segments and hosts
  for (const HostOf& host_of : Layouts()) {
    const int64_t hosts = HostLayout(host_of).hosts();
    for (int64_t sent :
         BytesOut(host_of, OfAll(host_of, {BetweenHosts::kTwoPhases, 64}, elements, 4000))) {
      const double floor = 2.0 * static_cast<double>(hosts - 1) / hosts * elements * 4;
      // An element for each segment, of which there are fewer than ranks.
      EXPECT_TRUE(static_cast<double>(sent) >= floor - 4.0 * 2 * hosts * host_of.size());
      EXPECT_TRUE(static_cast<double>(sent) <= floor + 4.0 * 2 * hosts * host_of.size());
    }
    for (int64_t sent :
         BytesOut(host_of, OfAll(host_of, {BetweenHosts::kExchange, 64}, elements, 4000))) {
      EXPECT_EQ(sent, (hosts - 1) * elements * 4);
    }
  }
}

TEST(CanonicalOrderIsKeptWhereHostsAreSubtrees) {
  EXPECT_TRUE(HostLayout(SideBySide(5, 4)).KeepsCanonicalOrder());
  EXPECT_TRUE(HostLayout(SideBySide(3, 1)).KeepsCanonicalOrder());
  EXPECT_TRUE(HostLayout({0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}).KeepsCanonicalOrder());
  EXPECT_TRUE(!HostLayout(SideBySide(2, 3)).KeepsCanonicalOrder());
  EXPECT_TRUE(!HostLayout(InTurns(2, 2)).KeepsCanonicalOrder());
  EXPECT_TRUE(!HostLayout({0, 0, 1, 1, 1, 1}).KeepsCanonicalOrder());
  EXPECT_TRUE(!HostLayout({0, 0, 0, 0, 1, 1, 2, 2, 2, 2}).KeepsCanonicalOrder());
  for (const HostOf& host_of : Layouts()) {
    const HostLayout layout(host_of);
    const int size = static_cast<int>(host_of.size());
    if (!layout.KeepsCanonicalOrder()) continue;
    EXPECT_EQ(SumByHost(layout, 5).tree, SumOf(Order::kCanonical, size, 0, 5).tree);
  }
}

TEST(HostsAreToldApartByTheirNames) {
  EXPECT_TRUE(NumberHosts({"b", "a", "b", "", ""}) == (std::vector<int>{0, 1, 0, 3, 4}));
  const HostLayout layout({7, 2, 7, 7});
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_TRUE(layout.PositionsOn(0) == (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(layout.HostOf(1), 1);
  EXPECT_TRUE(layout.ByHost() == (std::vector<int>{0, 2, 3, 1}));
}

}  // namespace
}  // namespace tfring::testing::hierarchical_allreduce_test
