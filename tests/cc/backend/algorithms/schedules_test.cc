#include <algorithm>
#include <numeric>
#include <set>

#include "ops/runtime/backend/algorithms/allgather.h"
#include "ops/runtime/backend/algorithms/broadcast.h"
#include "ops/runtime/backend/algorithms/direct_allreduce.h"
#include "ops/runtime/backend/algorithms/line_allreduce.h"
#include "ops/runtime/backend/algorithms/ring_allreduce.h"
#include "ops/runtime/backend/algorithms/select.h"
#include "ops/runtime/backend/algorithms/tree_allreduce.h"
#include "ops/runtime/backend/algorithms/two_phase_allreduce.h"
#include "ops/sim/price.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring {
namespace {

using testing::BytesSent;
using testing::Leaf;
using testing::PlaySymbolically;
using testing::Symbol;
using testing::SymbolicRank;

using AllreduceBuilder = Schedule (*)(const ReduceShape&);

constexpr AllreduceBuilder kAllreduces[] = {
    RingAllreduce, DirectAllreduce, DirectReduceScatterAllreduce, TreeAllreduce, LineAllreduce};

std::vector<Schedule> AllreduceOfAll(AllreduceBuilder builder, int size, int64_t elements,
                                     int64_t element_bytes, int64_t piece_bytes) {
  std::vector<Schedule> schedules;
  for (int r = 0; r < size; ++r) {
    schedules.push_back(builder({r, size, elements, element_bytes, piece_bytes}));
  }
  return schedules;
}

std::vector<SymbolicRank> Contributions(int size, int64_t elements) {
  std::vector<SymbolicRank> ranks(size);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < elements; ++i) ranks[r].input.push_back(Leaf(r, i));
    ranks[r].output.resize(elements);
  }
  return ranks;
}

TEST(EveryAllreduceSumsEveryElementOfEveryRankOnce) {
  for (AllreduceBuilder builder : kAllreduces) {
    for (int size = 2; size <= 9; ++size) {
      for (int64_t elements : {0, 1, 2, size - 1, size, size + 1, 1000, 4099}) {
        // Small pieces, so that there are many; they do not divide anything.
        for (uint32_t seed = 0; seed < (elements < 16 ? 30u : 4u); ++seed) {
          const std::vector<Schedule> schedules = AllreduceOfAll(builder, size, elements, 4, 1030);
          std::vector<SymbolicRank> ranks = Contributions(size, elements);
          const std::string wrong = PlaySymbolically(schedules, 4, seed % 2 == 1, seed, &ranks);
          const std::string what = std::string(schedules[0].algorithm) + ", " +
                                   std::to_string(size) + " ranks, " + std::to_string(elements) +
                                   " elements: ";
          ASSERT_EQ(what + wrong, what);
          bool all_right = true;
          for (const SymbolicRank& rank : ranks) {
            for (int64_t i = 0; i < elements; ++i) {
              all_right &= rank.output[i].ranks == (uint64_t{1} << size) - 1;
              all_right &= rank.output[i].finished == 1;
              all_right &= rank.output[i].tree == ranks[0].output[i].tree;
            }
          }
          ASSERT_EQ(what + (all_right ? "" : "a wrong result"), what);
        }
      }
    }
  }
}

TEST(ReduceScatterReusesItsScratchOnlyWhenItIsFree) {
  const int64_t elements = 50001;  // five or more pieces per slice
  for (int size : {2, 3}) {
    for (uint32_t seed = 0; seed < 8; ++seed) {
      std::vector<SymbolicRank> ranks = Contributions(size, elements);
      const std::vector<Schedule> schedules =
          AllreduceOfAll(DirectReduceScatterAllreduce, size, elements, 4, 1);
      ASSERT_EQ(PlaySymbolically(schedules, 4, seed % 2 == 1, seed, &ranks), "");
      // The position is part of the tree: an element that came from another piece shows.
      std::vector<SymbolicRank> plain = Contributions(size, elements);
      const std::vector<Schedule> direct = AllreduceOfAll(DirectAllreduce, size, elements, 4, 1);
      ASSERT_EQ(PlaySymbolically(direct, 4, false, seed, &plain), "");
      for (int64_t i = 0; i < elements; ++i) {
        for (int r = 0; r < size; ++r) {
          ASSERT_EQ(ranks[r].output[i].tree, plain[0].output[i].tree);
        }
      }
    }
  }
}

TEST(CanonicalAlgorithmsShareOneTreeOverRanks) {
  for (int size = 2; size <= 9; ++size) {
    const int64_t elements = 300;
    std::vector<std::vector<SymbolicRank>> results;
    for (AllreduceBuilder builder :
         {DirectAllreduce, DirectReduceScatterAllreduce, TreeAllreduce}) {
      std::vector<SymbolicRank> ranks = Contributions(size, elements);
      const std::vector<Schedule> schedules = AllreduceOfAll(builder, size, elements, 2, 64);
      EXPECT_EQ(PlaySymbolically(schedules, 2, false, 7, &ranks), "");
      results.push_back(std::move(ranks));
    }
    for (int64_t i = 0; i < elements; ++i) {
      ASSERT_EQ(results[1][0].output[i].tree, results[0][0].output[i].tree);
      ASSERT_EQ(results[2][0].output[i].tree, results[0][0].output[i].tree);
    }
  }
}

TEST(RingAndReduceScatterSendTwiceNMinusOneNthOfTheData) {
  for (AllreduceBuilder builder : {RingAllreduce, DirectReduceScatterAllreduce}) {
    for (int size = 2; size <= 8; ++size) {
      const int64_t elements = 840 * 3;  // a multiple of every size
      for (const Schedule& s : AllreduceOfAll(builder, size, elements, 4, 100)) {
        EXPECT_EQ(BytesSent(s) * size, 2 * (size - 1) * elements * 4);
      }
      int64_t total = 0;
      const int64_t odd = 1000003;
      for (const Schedule& s : AllreduceOfAll(builder, size, odd, 4, 100 << 10)) {
        total += BytesSent(s);
        // At most one element per chunk and round from the formula.
        EXPECT_TRUE(std::abs(BytesSent(s) * size - 2 * (size - 1) * odd * 4) <=
                    int64_t{4} * size * 2 * (size - 1));
      }
      EXPECT_EQ(total, 2 * (size - 1) * odd * 4);
    }
  }
}

void ExpectGathered(const std::vector<Schedule>& schedules, const std::vector<int64_t>& blocks) {
  const int size = static_cast<int>(blocks.size());
  const int64_t total = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  std::vector<SymbolicRank> ranks(size);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < blocks[r]; ++i) ranks[r].input.push_back(Leaf(r, i));
    ranks[r].output.resize(total);
  }
  ASSERT_EQ(PlaySymbolically(schedules, 1, false, 3, &ranks), "");
  for (const SymbolicRank& rank : ranks) {
    int64_t at = 0;
    for (int r = 0; r < size; ++r) {
      for (int64_t i = 0; i < blocks[r]; ++i, ++at) {
        ASSERT_EQ(rank.output[at].tree, Leaf(r, i).tree);
      }
    }
  }
}

void CheckGather(Schedule (*builder)(const GatherShape&), const std::vector<int64_t>& blocks) {
  std::vector<Schedule> schedules;
  for (size_t r = 0; r < blocks.size(); ++r) {
    schedules.push_back(builder({static_cast<int>(r), blocks, 10}));
  }
  ExpectGathered(schedules, blocks);
}

TEST(EveryAllgatherBringsEveryBlockToEverybody) {
  for (auto builder : {RingAllgather, DirectAllgather, LineAllgather}) {
    for (int size = 2; size <= 9; ++size) {
      std::vector<int64_t> blocks;
      for (int r = 0; r < size; ++r) blocks.push_back(r * 7 % 5 * 11);  // some are empty
      CheckGather(builder, blocks);
      CheckGather(builder, std::vector<int64_t>(size, 0));
      CheckGather(builder, std::vector<int64_t>(size, 33));
    }
  }
}

TEST(EveryBroadcastBringsTheRootsDataToEverybody) {
  for (auto builder : {TreeBroadcast, ChainBroadcast, LineBroadcast}) {
    for (int size = 2; size <= 9; ++size) {
      for (int root = 0; root < size; ++root) {
        for (int64_t bytes : {0, 1, 100, 1001}) {
          std::vector<Schedule> schedules;
          std::vector<SymbolicRank> ranks = Contributions(size, bytes);
          for (int r = 0; r < size; ++r) schedules.push_back(builder({r, size, root, bytes, 64}));
          ASSERT_EQ(PlaySymbolically(schedules, 1, bytes == 100, 5, &ranks), "");
          for (const SymbolicRank& rank : ranks) {
            for (int64_t i = 0; i < bytes; ++i) {
              ASSERT_EQ(rank.output[i].tree, Leaf(root, i).tree);
            }
          }
        }
      }
    }
  }
}

TEST(LineAndRingScheduleTalkToNeighboursOnly) {
  const int size = 7;
  for (int r = 0; r < size; ++r) {
    const std::vector<int64_t> blocks(size, 50);
    for (const Schedule& s : {LineAllreduce({r, size, 1000, 4, 64}), LineAllgather({r, blocks, 16}),
                              LineBroadcast({r, size, 3, 500, 64})}) {
      for (const Step& step : s.steps) {
        if (step.kind != StepKind::kCopy) EXPECT_EQ(std::abs(step.peer - r), 1);
      }
    }
    for (const Schedule& s : {RingAllreduce({r, size, 1000, 4, 64}), RingAllgather({r, blocks, 16}),
                              ChainBroadcast({r, size, 3, 500, 64})}) {
      for (const Step& step : s.steps) {
        const int distance = (step.peer - r + size) % size;
        if (step.kind != StepKind::kCopy) EXPECT_TRUE(distance == 1 || distance == size - 1);
      }
    }
  }
}

// The algorithm that the settings lead to, the same on every rank.
std::string Selected(CollectiveKind kind, int size, int64_t bytes, const Config& config,
                     Connectivity connectivity) {
  std::set<std::string> names;
  for (int r = 0; r < size; ++r) {
    Collective collective;
    collective.kind = kind;
    collective.dtype = DataType::kFloat32;
    collective.self = r;
    for (int m = 0; m < size; ++m) collective.members.push_back(m);
    collective.buffers.push_back({nullptr, nullptr, bytes, bytes});
    collective.block_bytes.push_back(std::vector<int64_t>(size, bytes / size));
    Result<Schedule> schedule = SelectSchedule(collective, config, connectivity);
    names.insert(schedule.ok() ? schedule->algorithm : schedule.status().ToString());
  }
  return names.size() == 1 ? *names.begin() : "ranks disagree";
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
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config, full), "direct_reduce_scatter");
  EXPECT_EQ(Selected(reduce, 4, 64 << 20, config, Connectivity::kRing), "line_allreduce");
  const auto gather = CollectiveKind::kAllgather;
  EXPECT_EQ(Selected(gather, 4, 1 << 10, config, full), "direct_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 20, config, full), "ring_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 10, config, Connectivity::kRing), "ring_allgather");
  EXPECT_EQ(Selected(gather, 4, 1 << 10, config, Connectivity::kLine), "line_allgather");
  const auto broadcast = CollectiveKind::kBroadcast;
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config, full), "tree_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 20, config, full), "chain_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config, Connectivity::kRing), "chain_broadcast");
  EXPECT_EQ(Selected(broadcast, 4, 1 << 10, config, Connectivity::kLine), "line_broadcast");
  EXPECT_EQ(Selected(CollectiveKind::kBarrier, 4, 0, config, Connectivity::kNone), "barrier");
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
      std::vector<SymbolicRank> ranks = Contributions(size, 500);
      ASSERT_EQ(PlaySymbolically(AroundTheGap(c, config), 1, false, 5, &ranks), "");
      for (const SymbolicRank& rank : ranks) {
        for (int64_t i = 0; i < 500; ++i) ASSERT_EQ(rank.output[i].tree, Leaf(c.root, i).tree);
      }
    }
    c.kind = CollectiveKind::kAllgather;
    c.root = 0;
    c.block_bytes = {{}};
    for (int m = 0; m < size; ++m) c.block_bytes[0].push_back(m * 7 % 4 * 101);
    ExpectGathered(AroundTheGap(c, config), c.block_bytes[0]);
  }
}

TEST(PricesFollowTheTextbook) {
  LinkModel model;
  model.latency = 1000;
  model.bytes_per_second = 1e9;
  model.reduce_bytes_per_second = 1e15;  // as good as free
  for (int size : {2, 4, 8}) {
    const int64_t bytes = 64 << 20;
    const double floor = 2.0 * (size - 1) / size * static_cast<double>(bytes);
    for (AllreduceBuilder builder : {RingAllreduce, DirectReduceScatterAllreduce}) {
      for (Duration end :
           PriceSchedules(AllreduceOfAll(builder, size, bytes / 4, 4, 512 << 10), model)) {
        EXPECT_TRUE(static_cast<double>(end) >= floor);
        EXPECT_TRUE(static_cast<double>(end) <= 1.2 * floor);
      }
    }
    // One hop against 2 (N-1): the latency alone.
    EXPECT_EQ(PriceSchedules(AllreduceOfAll(DirectAllreduce, size, 0, 4, 4), model)[0], 0);
    const Duration direct =
        PriceSchedules(AllreduceOfAll(DirectAllreduce, size, size, 1, 4), model)[0];
    const Duration ring = PriceSchedules(AllreduceOfAll(RingAllreduce, size, size, 1, 4), model)[0];
    EXPECT_TRUE(direct >= 1000 && direct < 1000 + 10 * size * size);
    EXPECT_TRUE(ring >= 2 * (size - 1) * 1000);
  }
  // Somebody who waits for a message that nobody sends never ends.
  std::vector<Schedule> lonely = AllreduceOfAll(RingAllreduce, 2, 100, 4, 64);
  lonely[1].steps.clear();
  EXPECT_EQ(PriceSchedules(lonely, model)[0], kNever);
}

}  // namespace
}  // namespace tfring

TFRING_TEST_MAIN()
