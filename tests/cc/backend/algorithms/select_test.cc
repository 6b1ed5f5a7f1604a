#include "ops/runtime/backend/algorithms/select.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "ops/runtime/backend/algorithms/alltoall.h"
#include "ops/runtime/backend/algorithms/gather_scatter.h"
#include "ops/runtime/backend/algorithms/reduce.h"
#include "ops/runtime/backend/algorithms/reducescatter.h"
#include "ops/sim/price.h"
#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

// The schedules of the collectives that give different ranks different results.

namespace tfring {
namespace {

using testing::BytesSent;
using testing::Combined;
using testing::Leaf;
using testing::PlaySymbolically;
using testing::Symbol;
using testing::SymbolicRank;

using Blocks = std::vector<int64_t>;

int64_t Sum(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
}

// Uneven, even, with empty ones, empty, and all for one.
std::vector<Blocks> BlockCases(int size, int64_t unit) {
  std::vector<Blocks> cases(5, Blocks(size, 0));
  for (int m = 0; m < size; ++m) {
    cases[0][m] = unit * (1 + m * 7 % 5 * 11);
    cases[1][m] = unit * 33;
    cases[2][m] = unit * (m * 7 % 3 * 40);
  }
  cases[4][size / 2] = unit * 300;
  return cases;
}

enum class Order { kCanonical, kRing, kLine };

// What comes out where `owner` gets the sum of element i of all ranks.
Symbol SumOf(Order order, int size, int owner, int64_t i) {
  std::vector<Symbol> level;
  for (int r = 0; r < size; ++r) level.push_back(Leaf(r, i));
  while (order == Order::kCanonical && level.size() > 1) {
    std::vector<Symbol> above;
    for (size_t k = 0; k + 1 < level.size(); k += 2) {
      above.push_back(Combined(level[k], level[k + 1]));
    }
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  if (order == Order::kCanonical) return level[0];
  if (order == Order::kRing) {
    Symbol sum = level[(owner + 1) % size];
    for (int hop = 2; hop <= size; ++hop) sum = Combined(level[(owner + hop) % size], sum);
    return sum;
  }
  Symbol result = level[owner];
  if (owner > 0) {
    Symbol sum = level[0];
    for (int r = 1; r < owner; ++r) sum = Combined(level[r], sum);
    result = Combined(result, sum);
  }
  if (owner + 1 < size) {
    Symbol sum = level[size - 1];
    for (int r = size - 2; r > owner; --r) sum = Combined(level[r], sum);
    result = Combined(result, sum);
  }
  return result;
}

bool SameOnceFinished(const Symbol& actual, const Symbol& expected) {
  return actual.ranks == expected.ranks && actual.tree == expected.tree && actual.finished == 1;
}

std::vector<SymbolicRank> Leaves(int size, int64_t elements) {
  std::vector<SymbolicRank> ranks(size);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < elements; ++i) ranks[r].input.push_back(Leaf(r, i));
  }
  return ranks;
}

struct NamedReducescatter {
  Schedule (*build)(const ScatterShape&);
  Order order;
};
constexpr NamedReducescatter kReducescatters[] = {{DirectReducescatter, Order::kCanonical},
                                                  {RingReducescatter, Order::kRing},
                                                  {LineReducescatter, Order::kLine}};

void CheckReducescatter(const NamedReducescatter& algorithm, const Blocks& blocks,
                        int64_t piece_bytes, uint32_t seed) {
  const int size = static_cast<int>(blocks.size());
  const int64_t element = 4;
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks = Leaves(size, Sum(blocks) / element);
  for (int r = 0; r < size; ++r) {
    schedules.push_back(algorithm.build({r, blocks, element, piece_bytes}));
    ranks[r].output.resize(blocks[r] / element);
    EXPECT_TRUE(BytesSent(schedules[r]) <= Sum(blocks) - blocks[r]);
    if (algorithm.order != Order::kLine) {
      EXPECT_EQ(BytesSent(schedules[r]), Sum(blocks) - blocks[r]);
    }
  }
  const std::string what = std::string(schedules[0].algorithm) + " of " + std::to_string(size);
  ASSERT_EQ(what + PlaySymbolically(schedules, element, false, seed, &ranks), what);
  int64_t at = 0;
  for (int r = 0; r < size; ++r) {
    for (const Symbol& actual : ranks[r].output) {
      ASSERT_TRUE(SameOnceFinished(actual, SumOf(algorithm.order, size, r, at++)));
    }
  }
}

TEST(EveryReducescatterGivesEachOwnerTheSumOfItsBlock) {
  for (const NamedReducescatter& algorithm : kReducescatters) {
    for (int size = 2; size <= 9; ++size) {
      uint32_t seed = 0;
      for (const Blocks& blocks : BlockCases(size, 4)) {
        for (int64_t piece : {1, 50, 1 << 20}) CheckReducescatter(algorithm, blocks, piece, ++seed);
      }
    }
    CheckReducescatter(algorithm, Blocks(23, 40), 16, 1);
  }
  // Pieces of a direct exchange are not smaller than this.
  CheckReducescatter(kReducescatters[0], {400000, 0, 200004}, 1, 1);
}

using ReduceBuilder = Schedule (*)(const ReduceShape&, int);
struct NamedReduce {
  ReduceBuilder build;
  Order order;
};
constexpr NamedReduce kReduces[] = {{DirectReduce, Order::kCanonical},
                                    {TreeReduce, Order::kCanonical},
                                    {ScatterReduce, Order::kCanonical},
                                    {ChainReduce, Order::kRing},
                                    {LineReduce, Order::kLine}};

void CheckReduce(const NamedReduce& algorithm, int size, int root, int64_t elements,
                 int64_t piece_bytes, bool in_place) {
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks = Leaves(size, elements);
  for (int r = 0; r < size; ++r) {
    schedules.push_back(algorithm.build({r, size, elements, 4, piece_bytes}, root));
    if (r == root) ranks[r].output.resize(elements);
    EXPECT_TRUE(BytesSent(schedules[r]) <= elements * 4);
  }
  const std::string what = std::string(schedules[0].algorithm) + " of " + std::to_string(size) +
                           " to " + std::to_string(root);
  const uint32_t seed = static_cast<uint32_t>(size * 10 + root);
  ASSERT_EQ(what + PlaySymbolically(schedules, 4, in_place, seed, &ranks), what);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < elements; ++i) {
      if (r == root) {
        const Symbol expected = SumOf(algorithm.order, size, root, i);
        ASSERT_TRUE(SameOnceFinished(ranks[r].output[i], expected));
      } else if (in_place) {
        ASSERT_EQ(ranks[r].output[i].tree, Leaf(r, i).tree);  // not written
      }
    }
  }
}

TEST(EveryReduceBringsTheSumToTheRootOnly) {
  for (const NamedReduce& algorithm : kReduces) {
    for (int size = 2; size <= 9; ++size) {
      for (int root = 0; root < size; ++root) {
        for (int64_t elements : {0, 1, size + 1, 300}) {
          CheckReduce(algorithm, size, root, elements, 50, elements % 2 == 0);
        }
      }
    }
    CheckReduce(algorithm, 21, 13, 100, 64, true);
    CheckReduce(algorithm, 3, 1, 30001, 1 << 10, true);
  }
}

// What rank `from` sends to rank `to`: some nothing, differing in both directions.
int64_t Sent(int from, int to, int variant) {
  if (variant == 0) return 0;
  return (from * 5 + to * 3 + variant) % 4 * 25;
}

void CheckAlltoall(int size, int variant) {
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks(size);
  std::vector<std::vector<Symbol>> expected(size);
  for (int r = 0; r < size; ++r) {
    AlltoallShape shape{r, {}, {}, 10};
    for (int peer = 0; peer < size; ++peer) {
      shape.send_bytes.push_back(Sent(r, peer, variant));
      shape.recv_bytes.push_back(Sent(peer, r, variant));
      for (int64_t i = 0; i < Sent(r, peer, variant); ++i) {
        ranks[r].input.push_back(Leaf(r, peer * 1000 + i));
      }
      for (int64_t i = 0; i < Sent(peer, r, variant); ++i) {
        expected[r].push_back(Leaf(peer, r * 1000 + i));
      }
    }
    ranks[r].output.resize(expected[r].size());
    schedules.push_back(PairwiseAlltoall(shape));
    EXPECT_EQ(BytesSent(schedules[r]), Sum(shape.send_bytes) - shape.send_bytes[r]);
  }
  ASSERT_EQ(PlaySymbolically(schedules, 1, false, 11, &ranks), "");
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < expected[r].size(); ++i) {
      ASSERT_EQ(ranks[r].output[i].tree, expected[r][i].tree);
    }
  }
}

TEST(AlltoallBringsEveryBlockToItsRank) {
  for (int size = 1; size <= 9; ++size) {
    for (int variant = 0; variant < 5; ++variant) CheckAlltoall(size, variant);
  }
  CheckAlltoall(30, 1);
}

void CheckRooted(Schedule (*build)(const RootedShape&), bool gather, const Blocks& blocks,
                 int root) {
  const int size = static_cast<int>(blocks.size());
  std::vector<Schedule> schedules;
  std::vector<SymbolicRank> ranks(size);
  int64_t at = 0;
  int64_t sent = 0;
  for (int r = 0; r < size; ++r) {
    schedules.push_back(build({r, root, blocks, 16}));
    sent += BytesSent(schedules[r]);
    // The numbers of the elements are those on the root's side.
    std::vector<Symbol>& own = gather ? ranks[r].input : ranks[r].output;
    own.resize(blocks[r]);
    for (int64_t i = 0; i < blocks[r]; ++i, ++at) {
      if (gather) own[i] = Leaf(0, at);
      if (!gather) ranks[root].input.push_back(Leaf(0, at));
    }
  }
  if (gather) ranks[root].output.resize(at);
  const std::string what = schedules[0].algorithm;
  ASSERT_EQ(what + PlaySymbolically(schedules, 1, false, 5, &ranks), what);
  at = 0;
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < blocks[r]; ++i, ++at) {
      const Symbol& actual = gather ? ranks[root].output[at] : ranks[r].output[i];
      ASSERT_EQ(actual.tree, Leaf(0, at).tree);
    }
  }
  int64_t hops = Sum(blocks) - blocks[root];
  if (what.rfind("line", 0) == 0) {
    hops = 0;
    for (int r = 0; r < size; ++r) hops += blocks[r] * std::abs(r - root);
  }
  EXPECT_EQ(sent, hops);
}

TEST(EveryGatherAndScatterMovesEachBlockOnce) {
  for (int size = 2; size <= 9; ++size) {
    for (int root = 0; root < size; ++root) {
      for (const Blocks& blocks : BlockCases(size, 1)) {
        CheckRooted(DirectGather, true, blocks, root);
        CheckRooted(LineGather, true, blocks, root);
        CheckRooted(DirectScatter, false, blocks, root);
        CheckRooted(LineScatter, false, blocks, root);
      }
    }
  }
}

TEST(SendRecvMovesOneWayOnly) {
  for (int source : {0, 1}) {
    for (int64_t bytes : {0, 1, 1000}) {
      std::vector<SymbolicRank> ranks(2);
      for (int64_t i = 0; i < bytes; ++i) ranks[source].input.push_back(Leaf(source, i));
      ranks[1 - source].output.resize(bytes);
      const std::vector<Schedule> schedules = {SendRecv(0, source, bytes),
                                               SendRecv(1, source, bytes)};
      ASSERT_EQ(PlaySymbolically(schedules, 1, false, 1, &ranks), "");
      EXPECT_EQ(BytesSent(schedules[source]), bytes);
      EXPECT_EQ(BytesSent(schedules[1 - source]), 0);
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(ranks[1 - source].output[i].tree, Leaf(source, i).tree);
      }
    }
  }
}

TEST(LineSchedulesTalkToNeighboursOnly) {
  const int size = 7;
  const Blocks blocks(size, 48);
  for (int r = 0; r < size; ++r) {
    for (const Schedule& s :
         {LineReducescatter({r, blocks, 4, 16}), LineReduce({r, size, 100, 4, 64}, 3),
          LineGather({r, 3, blocks, 16}), LineScatter({r, 3, blocks, 16})}) {
      for (const Step& step : s.steps) {
        if (step.kind != StepKind::kCopy) EXPECT_EQ(std::abs(step.peer - r), 1);
      }
    }
    for (const Schedule& s :
         {RingReducescatter({r, blocks, 4, 16}), ChainReduce({r, size, 100, 4, 64}, 3)}) {
      for (const Step& step : s.steps) {
        const int distance = (step.peer - r + size) % size;
        EXPECT_TRUE(distance == 1 || distance == size - 1);
      }
    }
  }
}

// A collective of one tensor of `rows` float32 per member, as rank `self` sees it.
Collective Describe(CollectiveKind kind, int size, int self, int64_t rows) {
  Collective c;
  c.kind = kind;
  c.dtype = DataType::kFloat32;
  c.self = self;
  for (int m = 0; m < size; ++m) c.members.push_back(m);
  const bool root = self == 0;
  const int64_t block = rows * 4;
  const int64_t all = block * size;
  TensorBuffer buffer;
  if (kind == CollectiveKind::kReduce) buffer = {nullptr, nullptr, all, root ? all : 0};
  if (kind == CollectiveKind::kReducescatter) buffer = {nullptr, nullptr, all, block};
  if (kind == CollectiveKind::kAlltoall) buffer = {nullptr, nullptr, all, all};
  if (kind == CollectiveKind::kGather) buffer = {nullptr, nullptr, block, root ? all : 0};
  if (kind == CollectiveKind::kScatter) buffer = {nullptr, nullptr, root ? all : 0, block};
  if (kind == CollectiveKind::kSendRecv) {
    buffer = {nullptr, nullptr, root ? block : 0, root ? 0 : block};
  }
  c.buffers.push_back(buffer);
  c.block_bytes.push_back(Blocks(size, block));
  c.send_bytes = c.block_bytes;
  return c;
}

// The algorithm that all ranks choose, and the time that the simulator's links would take.
std::string Selected(CollectiveKind kind, int size, int64_t rows, const Config& config,
                     Connectivity connectivity) {
  std::set<std::string> names;
  std::vector<Schedule> schedules;
  for (int r = 0; r < size; ++r) {
    Result<Schedule> schedule = SelectSchedule(Describe(kind, size, r, rows), config, connectivity);
    names.insert(schedule.ok() ? schedule->algorithm : schedule.status().ToString());
    if (schedule.ok()) schedules.push_back(std::move(*schedule));
  }
  for (Duration end : PriceSchedules(schedules, LinkModel())) {
    if (end == kNever) return "never ends";
  }
  return names.size() == 1 ? *names.begin() : "ranks disagree";
}

TEST(SelectionOfEveryKind) {
  Config config;
  const auto full = Connectivity::kFull;
  const auto ring = Connectivity::kRing;
  const auto line = Connectivity::kLine;
  const auto scatter_sum = CollectiveKind::kReducescatter;
  const int64_t large = 1 << 20;
  EXPECT_EQ(Selected(scatter_sum, 4, 4, config, full), "direct_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, large, config, full), "ring_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 2, large, config, full), "direct_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, 4, config, ring), "ring_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 4, 4, config, line), "line_reducescatter");
  EXPECT_EQ(Selected(scatter_sum, 1, 4, config, full), "copy");
  const auto reduce = CollectiveKind::kReduce;
  EXPECT_EQ(Selected(reduce, 4, 4, config, full), "direct_reduce");
  EXPECT_EQ(Selected(reduce, 40, 4, config, full), "tree_reduce");
  EXPECT_EQ(Selected(reduce, 4, 16000, config, full), "tree_reduce");
  EXPECT_EQ(Selected(reduce, 4, large, config, full), "chain_reduce");
  EXPECT_EQ(Selected(reduce, 4, 4, config, ring), "chain_reduce");
  EXPECT_EQ(Selected(reduce, 4, 4, config, line), "line_reduce");
  config.deterministic = true;
  EXPECT_EQ(Selected(scatter_sum, 4, large, config, full), "direct_reducescatter");
  EXPECT_EQ(Selected(reduce, 4, large, config, full), "scatter_reduce");
  EXPECT_EQ(Selected(CollectiveKind::kGather, 4, 9, config, full), "direct_gather");
  EXPECT_EQ(Selected(CollectiveKind::kGather, 4, 9, config, ring), "line_gather");
  EXPECT_EQ(Selected(CollectiveKind::kScatter, 4, 9, config, full), "direct_scatter");
  EXPECT_EQ(Selected(CollectiveKind::kScatter, 4, 9, config, line), "line_scatter");
  EXPECT_EQ(Selected(CollectiveKind::kAlltoall, 4, 9, config, full), "pairwise_alltoall");
  EXPECT_CONTAINS(Selected(CollectiveKind::kAlltoall, 4, 9, config, ring), "ranks 0-3 are not");
  EXPECT_CONTAINS(Selected(CollectiveKind::kAlltoall, 4, 9, config, line), "alltoall needs");
  EXPECT_EQ(Selected(CollectiveKind::kSendRecv, 2, 9, config, full), "send_recv");
  EXPECT_CONTAINS(Selected(CollectiveKind::kSendRecv, 2, 9, config, Connectivity::kNone),
                  "ranks 0, 1 are not connected");
  EXPECT_CONTAINS(Selected(CollectiveKind::kJoin, 4, 9, config, full), "moves no data");
}

TEST(PricesOfScatteredSumsFollowTheTextbook) {
  LinkModel model;
  model.latency = 1000;
  model.bytes_per_second = 1e9;
  model.reduce_bytes_per_second = 1e15;  // as good as free
  for (int size : {2, 4, 8}) {
    const int64_t bytes = 64 << 20;
    const double floor = (size - 1.0) / size * static_cast<double>(bytes);
    for (auto build : {DirectReducescatter, RingReducescatter}) {
      std::vector<Schedule> schedules;
      for (int r = 0; r < size; ++r) {
        schedules.push_back(build({r, Blocks(size, bytes / size), 4, 512 << 10}));
      }
      for (Duration end : PriceSchedules(schedules, model)) {
        EXPECT_TRUE(static_cast<double>(end) >= floor);
        EXPECT_TRUE(static_cast<double>(end) <= 1.2 * floor);
      }
    }
    std::vector<Schedule> schedules;
    for (int r = 0; r < size; ++r) {
      schedules.push_back(ChainReduce({r, size, bytes / 4, 4, 512 << 10}, 1));
    }
    const double end = static_cast<double>(PriceSchedules(schedules, model)[1]);
    EXPECT_TRUE(end >= static_cast<double>(bytes) && end <= 1.2 * static_cast<double>(bytes));
  }
}

}  // namespace
}  // namespace tfring

TFRING_TEST_MAIN()
