#include "ops/runtime/backend/algorithms/narrow_wire.h"

#include <functional>
#include <string>
#include <vector>

#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"
#include "ops/runtime/backend/algorithms/select.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::narrow_wire_test {
namespace {

using HostOf = std::vector<int>;  // by position
using Algorithm = std::function<Schedule(const ReduceShape&, const HostLayout&)>;

const std::vector<HostOf> kLayouts = {{0, 1},
                                      {0, 1, 2},
                                      {0, 1, 2, 3, 4},
                                      {0, 0, 1, 1},
                                      {0, 1, 0, 1},
                                      {0, 0, 0, 1, 1},
                                      {0, 1, 1, 1, 0},
                                      {0, 0, 1, 1, 2, 2, 3, 3},
                                      {2, 0, 0, 2, 1, 1, 1, 1}};

std::vector<Algorithm> Algorithms() {
  std::vector<Algorithm> all;
  for (Schedule (*flat)(const ReduceShape&) :
       {DirectAllreduce, TreeAllreduce, RingAllreduce, TwoPhaseAllreduce}) {
    all.push_back([flat](const ReduceShape& shape, const HostLayout&) { return flat(shape); });
  }
  for (BetweenHosts between : {BetweenHosts::kExchange, BetweenHosts::kTwoPhases,
                               BetweenHosts::kDoubling, BetweenHosts::kHalving}) {
    const bool pairs = between == BetweenHosts::kDoubling || between == BetweenHosts::kHalving;
    for (int workers : {1, 64}) {
      all.push_back([=](const ReduceShape& shape, const HostLayout& layout) {
        const bool can = !pairs || 1 << PairingRounds(layout.hosts()) == layout.hosts();
        return can ? HierarchicalAllreduce(shape, layout, {between, workers})
                   : TreeAllreduce(shape);
      });
    }
  }
  return all;
}

std::vector<Schedule> OfAll(const Algorithm& algorithm, const HostOf& host_of, int64_t elements,
                            bool narrow) {
  const HostLayout layout(host_of);
  const int size = static_cast<int>(host_of.size());
  std::vector<Schedule> schedules;
  for (int r = 0; r < size; ++r) {
    schedules.push_back(algorithm({r, size, elements, 4, 100, narrow}, layout));
    if (narrow) NarrowBetweenHosts(layout, r, DataType::kBfloat16, &schedules.back());
  }
  return schedules;
}

// Rounding is a part of what is compared: a rank that keeps what it sends rounded, or rounds what
// others do not, has another sum.
TEST(AllRanksHaveTheSameSumOfRoundedNumbers) {
  uint32_t seed = 0;
  for (const HostOf& host_of : kLayouts) {
    const auto size = static_cast<int>(host_of.size());
    for (const Algorithm& algorithm : Algorithms()) {
      for (int64_t elements : {1, 2, size - 1, size + 1, 523}) {
        const std::vector<Schedule> schedules = OfAll(algorithm, host_of, elements, true);
        std::vector<SymbolicRank> ranks = Inputs(size, elements);
        for (SymbolicRank& rank : ranks) rank.output.resize(elements);
        ++seed;
        const std::string name =
            std::string(schedules[0].algorithm) + ", seed " + std::to_string(seed) + ": ";
        ASSERT_EQ(name + PlaySymbolically(schedules, 4, seed % 2 == 1, seed, &ranks), name);
        bool same = true;
        for (int64_t i = 0; i < elements; ++i) {
          const Symbol& first = ranks[0].output[i];
          same &= first.ranks == (uint64_t{1} << size) - 1;
          for (const SymbolicRank& rank : ranks) same &= IsFinished(rank.output[i], first);
        }
        ASSERT_EQ(name + (same ? "" : "another sum"), name);
      }
    }
  }
}

TEST(HalfTheBytesGoBetweenHostsAndAllWithin) {
  const int64_t elements = 840;
  for (const HostOf& host_of : kLayouts) {
    for (const Algorithm& algorithm : Algorithms()) {
      const std::vector<Schedule> wide = OfAll(algorithm, host_of, elements, false);
      const std::vector<Schedule> narrow = OfAll(algorithm, host_of, elements, true);
      for (size_t r = 0; r < host_of.size(); ++r) {
        const auto sent = [&](const Schedule& schedule, bool within) {
          int64_t bytes = 0;
          for (const Step& step : schedule.steps) {
            const bool counts =
                step.kind == StepKind::kSend && (host_of[step.peer] == host_of[r]) == within;
            bytes += counts ? StepBytes(step) : 0;
          }
          return bytes;
        };
        EXPECT_EQ(2 * sent(narrow[r], false), sent(wide[r], false));
        EXPECT_EQ(sent(narrow[r], true), sent(wide[r], true));
      }
    }
  }
}

TEST(OnlySumsOfFloat32OverSeveralHostsAreNarrow) {
  Config config;
  config.wire_dtype = DataType::kBfloat16;
  Collective sum;
  sum.kind = CollectiveKind::kAllreduce;
  sum.dtype = DataType::kFloat32;
  sum.members = {0, 1};
  std::vector<float> data(9);
  sum.buffers = {{data.data(), data.data(), 36, 36}};
  const HostLayout two({0, 1});
  const auto wire = [&](const Collective& collective, const HostLayout& layout) {
    return SelectSchedule(collective, config, layout).wire;
  };
  EXPECT_TRUE(wire(sum, two) == DataType::kBfloat16);
  Collective average = sum;
  average.op = ReduceOp::kAverage;
  EXPECT_TRUE(wire(average, two) == DataType::kBfloat16);
  EXPECT_TRUE(wire(sum, HostLayout({0, 0})) == DataType::kFloat32);
  EXPECT_TRUE(wire(sum, HostLayout()) == DataType::kFloat32);
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAdasum}) {
    Collective other = sum;
    other.op = op;
    EXPECT_TRUE(wire(other, two) == DataType::kFloat32);
  }
  for (DataType dtype : {DataType::kInt32, DataType::kFloat16, DataType::kBfloat16}) {
    Collective other = sum;
    other.dtype = dtype;
    EXPECT_TRUE(wire(other, two) == DataType::kFloat32);
  }
  Collective reduce = sum;
  reduce.kind = CollectiveKind::kReduce;
  EXPECT_TRUE(wire(reduce, two) == DataType::kFloat32);
  config.wire_dtype = DataType::kFloat32;
  EXPECT_TRUE(wire(sum, two) == DataType::kFloat32);
}

}  // namespace
}  // namespace tfring::testing::narrow_wire_test
