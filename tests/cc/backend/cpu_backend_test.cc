// All collectives on the CPU backend, and on one rank alone, compared with a plain computation.
#include <cmath>
#include <string>

#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::cpu_backend_test {
namespace {

constexpr size_t kTensors = 3;

struct Case {
  CollectiveKind kind = CollectiveKind::kReducescatter;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int64_t unit = 1;  // elements of a block are 0 to 3 of it
  int root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;  // where input and output have the same size
  double value = 0.0;     // of all that is reduced, unless it is 0

  // Of tensor `tensor` for the member at this position; alltoall: from another one.
  int64_t Block(size_t tensor, int member, int from = 0) const {
    return unit * ((member * 7 + static_cast<int>(tensor) * 3 + from * 5) % 4);
  }
};

// One rank's part of a case. Values are numbered along each tensor of the summed input, or, where
// nothing is summed, along that of the sender.
struct Part {
  std::vector<std::vector<double>> input, expected;  // by tensor
  std::vector<std::vector<char>> in, before, out;
};

double Number(const Case& c, Rank rank, size_t tensor, int64_t i) {
  if (c.value != 0) return c.value;
  return Value(c.op, rank, static_cast<int64_t>(tensor) * 1009 + i);
}

double Reduced(const Case& c, const std::vector<Rank>& members, size_t tensor, int64_t i) {
  double result = Expected(c.op, members, static_cast<int64_t>(tensor) * 1009 + i);
  if (c.value != 0) result = c.value * static_cast<double>(members.size());
  if (c.op == ReduceOp::kAverage) result /= static_cast<double>(members.size());
  return result * c.prescale * c.postscale;
}

// Where member `position`'s block begins in the sender's tensor, and its size.
std::pair<int64_t, int64_t> BlockAt(const Case& c, size_t t, int position, int from) {
  int64_t begin = 0;
  for (int m = 0; m < position; ++m) begin += c.Block(t, m, from);
  return {begin, c.Block(t, position, from)};
}

void FillReducing(const Case& c, const std::vector<Rank>& members, int self, Collective* out,
                  Part* part) {
  const int size = static_cast<int>(members.size());
  const int64_t element = DataTypeSize(c.dtype);
  for (size_t t = 0; t < kTensors; ++t) {
    const int64_t all = BlockAt(c, t, size, 0).first;
    for (int64_t i = 0; i < all; ++i) part->input[t].push_back(Number(c, members[self], t, i));
    auto [begin, count] = BlockAt(c, t, self, 0);
    if (c.kind == CollectiveKind::kReduce) begin = 0, count = self == c.root ? all : 0;
    if (c.kind == CollectiveKind::kAllreduce) begin = 0, count = all;
    for (int64_t i = begin; i < begin + count; ++i) {
      part->expected[t].push_back(Reduced(c, members, t, i));
    }
    out->block_bytes.emplace_back();
    for (int m = 0; m < size; ++m) out->block_bytes[t].push_back(c.Block(t, m) * element);
  }
}

void FillMoving(const Case& c, const std::vector<Rank>& members, int self, Collective* out,
                Part* part) {
  const int size = static_cast<int>(members.size());
  const int64_t element = DataTypeSize(c.dtype);
  const bool alltoall = c.kind == CollectiveKind::kAlltoall;
  const bool all_get = c.kind == CollectiveKind::kAllgather;
  const bool gather = c.kind == CollectiveKind::kGather || all_get;
  for (size_t t = 0; t < kTensors; ++t) {
    out->block_bytes.emplace_back();
    out->send_bytes.emplace_back();
    for (int m = 0; m < size; ++m) {
      out->block_bytes[t].push_back(element * (alltoall ? c.Block(t, self, m) : c.Block(t, m)));
      out->send_bytes[t].push_back(element * c.Block(t, m, self));
    }
    auto append = [&](std::vector<double>* to, int sender, int64_t begin, int64_t count) {
      for (int64_t i = begin; i < begin + count; ++i) {
        to->push_back(Number(c, members[sender], t, i));
      }
    };
    for (int m = 0; m < size; ++m) {
      if (alltoall) {
        const auto [to_begin, to_count] = BlockAt(c, t, m, self);
        append(&part->input[t], self, to_begin, to_count);
        const auto [begin, count] = BlockAt(c, t, self, m);
        append(&part->expected[t], m, begin, count);
      } else if (gather) {
        if (self == c.root || all_get) append(&part->expected[t], m, 0, c.Block(t, m));
      } else if (self == c.root) {
        const auto [begin, count] = BlockAt(c, t, m, 0);
        append(&part->input[t], c.root, begin, count);
      }
    }
    const auto [begin, count] = BlockAt(c, t, self, 0);
    if (gather) append(&part->input[t], self, 0, count);
    if (c.kind == CollectiveKind::kScatter) append(&part->expected[t], c.root, begin, count);
    const bool receives = c.kind == CollectiveKind::kSendRecv && self != c.root;
    if (receives || c.kind == CollectiveKind::kBroadcast) {
      append(&part->expected[t], c.root, 0, BlockAt(c, t, size, 0).first);
    }
  }
}

std::vector<char> Stored(DataType dtype, const std::vector<double>& values) {
  const size_t size = static_cast<size_t>(DataTypeSize(dtype));
  std::vector<char> bytes(values.size() * size + 1, 0x55);  // one more, which must stay
  for (size_t i = 0; i < values.size(); ++i) Store(dtype, bytes.data() + i * size, values[i]);
  return bytes;
}

Collective Prepare(const Case& c, const std::vector<Rank>& members, int self, Part* part) {
  Collective out;
  out.kind = c.kind;
  out.dtype = c.dtype;
  out.op = c.op;
  out.prescale = c.prescale;
  out.postscale = c.postscale;
  out.root = c.root;
  out.self = self;
  out.members = members;
  part->input.resize(kTensors);
  part->expected.resize(kTensors);
  (Traits(c.kind).reduces ? FillReducing : FillMoving)(c, members, self, &out, part);
  for (size_t t = 0; t < kTensors; ++t) {
    part->in.push_back(Stored(c.dtype, part->input[t]));
    const size_t bytes = part->expected[t].size() * static_cast<size_t>(DataTypeSize(c.dtype));
    part->out.push_back(std::vector<char>(bytes + 1, 0x55));
  }
  part->before = part->in;
  for (size_t t = 0; t < kTensors; ++t) {
    const int64_t in_bytes = static_cast<int64_t>(part->in[t].size()) - 1;
    const int64_t out_bytes = static_cast<int64_t>(part->out[t].size()) - 1;
    const bool same = c.in_place && in_bytes == out_bytes;
    if (same) part->out[t].clear();
    out.buffers.push_back({in_bytes > 0 ? part->in[t].data() : nullptr,
                           same ? part->in[t].data() : part->out[t].data(), in_bytes, out_bytes});
    if (out_bytes == 0) out.buffers.back().output = nullptr;
  }
  return out;
}

std::string Wrong(const Case& c, const Part& part) {
  const size_t size = static_cast<size_t>(DataTypeSize(c.dtype));
  for (size_t t = 0; t < kTensors; ++t) {
    const bool same = part.out[t].empty();
    if (!same && part.in[t] != part.before[t]) return "wrote to its input";
    const std::vector<char>& out = same ? part.in[t] : part.out[t];
    if (out.back() != 0x55) return "wrote behind its output";
    for (size_t i = 0; i < part.expected[t].size(); ++i) {
      const double expected = Read(c.dtype, Stored(c.dtype, {part.expected[t][i]}).data());
      const double actual = Read(c.dtype, out.data() + i * size);
      const bool rounds = c.op == ReduceOp::kAverage && c.value == 0;
      const double tolerance = rounds ? 0.01 * std::abs(expected) : 0.0;
      if (std::abs(actual - expected) > tolerance) {
        return "element " + std::to_string(i) + " of tensor " + std::to_string(t) + " is " +
               std::to_string(actual) + " and not " + std::to_string(expected);
      }
    }
  }
  return "";
}

void RunCases(World* world, const std::vector<Rank>& members, const std::vector<Case>& cases) {
  const size_t n = members.size();
  std::vector<Part> parts(cases.size() * n);
  for (size_t m = 0; m < n; ++m) {
    for (size_t c = 0; c < cases.size(); ++c) {
      Collective collective = Prepare(cases[c], members, static_cast<int>(m), &parts[c * n + m]);
      collective.sequence = c;
      world->backend(members[m]).Submit(std::move(collective));
    }
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    for (size_t m = 0; m < n; ++m) {
      const Completion completion = world->Wait(members[m], c);
      const std::string what = std::string(CollectiveKindName(cases[c].kind)) + ", " +
                               ReduceOpName(cases[c].op) + " of " + DataTypeName(cases[c].dtype) +
                               ", " + std::to_string(n) + " ranks, unit " +
                               std::to_string(cases[c].unit) + ": ";
      ASSERT_EQ(what + completion.status.ToString(), what + OkStatus().ToString());
      ASSERT_EQ(what + Wrong(cases[c], parts[c * n + m]), what);
    }
  }
}

std::vector<Case> AllCases(int size) {
  std::vector<Case> cases;
  for (DataType dtype : kReducibleTypes) {
    for (int64_t unit : {0, 1, 20, 300}) {
      const int root = static_cast<int>(cases.size()) % size;
      const bool in_place = cases.size() % 2 == 0;
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                          ReduceOp::kProduct}) {
        cases.push_back({CollectiveKind::kAllreduce, dtype, op, unit, 0, 1.0, 1.0, in_place});
        cases.push_back({CollectiveKind::kReducescatter, dtype, op, unit});
        cases.push_back({CollectiveKind::kReduce, dtype, op, unit, root, 1.0, 1.0, in_place});
      }
      cases.push_back({CollectiveKind::kAllgather, dtype, ReduceOp::kSum, unit});
      cases.push_back(
          {CollectiveKind::kBroadcast, dtype, ReduceOp::kSum, unit, root, 1.0, 1.0, in_place});
      cases.push_back({CollectiveKind::kGather, dtype, ReduceOp::kSum, unit, root});
      cases.push_back({CollectiveKind::kScatter, dtype, ReduceOp::kSum, unit, root});
      cases.push_back({CollectiveKind::kAlltoall, dtype, ReduceOp::kSum, unit});
      if (size == 2) {
        cases.push_back({CollectiveKind::kSendRecv, dtype, ReduceOp::kSum, unit, root});
      }
    }
  }
  for (auto kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter, CollectiveKind::kReduce}) {
    const int root = static_cast<int>(cases.size()) % size;
    for (const double value : kExtremeHalves) {
      for (int64_t unit : {1, 300}) {
        for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kSum}) {
          const double factor = op == ReduceOp::kSum ? 1.0 / size : 1.0;
          cases.push_back({kind, DataType::kFloat16, op, unit, root, 1.0, factor, false, value});
        }
      }
    }
  }
  return Sweep(std::move(cases));
}

TEST(EveryKindOfEveryTypeOnEveryNumberOfRanks) {
  for (int size = 1; size <= 9; ++size) {
    StreamOptions options;
    options.seed = static_cast<uint32_t>(size);
    options.peek = size % 2 == 0;
    Config config = SmallConfig();
    config.deterministic = size % 3 == 0;
    World world(size, config, options);
    RunCases(&world, FirstRanks(size), AllCases(size));
  }
}

TEST(SomeRanksOfAWorld) {
  World world(6, SmallConfig());
  RunCases(&world, {1, 3, 4}, AllCases(3));
  RunCases(&world, {2}, AllCases(1));
  World mostly_behind(6, SmallConfig());
  RunCases(&mostly_behind, {0, 3, 4, 5}, AllCases(4));
}

TEST(EveryKindInArenas) {
  for (int size : {2, 3, 5}) {
    World world(std::vector<Config>(size), SharedHost(size));
    std::vector<Case> cases = AllCases(size);
    std::vector<Case> large;
    for (int64_t unit : {7000, 100000}) {
      for (auto kind :
           {CollectiveKind::kAllreduce, CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
            CollectiveKind::kReducescatter, CollectiveKind::kReduce, CollectiveKind::kGather,
            CollectiveKind::kScatter, CollectiveKind::kAlltoall}) {
        large.push_back({kind, DataType::kFloat32, ReduceOp::kSum, unit, size - 1});
      }
    }
    for (const Case& one : Sweep(std::move(large))) cases.push_back(one);
    RunCases(&world, FirstRanks(size), cases);
  }
  World some(std::vector<Config>(6), SharedHost(6));
  RunCases(&some, {1, 3, 4}, AllCases(3));
}

TEST(ScalesApplyOnceBeforeAndAfter) {
  for (bool deterministic : {false, true}) {
    Config config = SmallConfig();
    config.deterministic = deterministic;
    World world(3, config);
    std::vector<Case> cases;
    for (DataType dtype : kReducibleTypes) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        for (int64_t unit : {1, 300}) {
          for (auto kind : {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter,
                            CollectiveKind::kReduce}) {
            cases.push_back({kind, dtype, op, unit, 1, 2.0, 3.0, cases.size() % 4 < 2});
            cases.push_back({kind, dtype, op, unit, 2, 4.0, 0.5, cases.size() % 4 < 2});
          }
        }
      }
    }
    RunCases(&world, FirstRanks(3), cases);
  }
}

// Float32 numbers whose sum depends on the order.
std::vector<float> Rough(Rank rank, int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) {
    values[i] = std::ldexp(static_cast<float>((rank * 7919 + i * 104729) % 65537) / 3.0f,
                           (rank * 5 + i) % 40 - 20);
  }
  return values;
}

TEST(CanonicalOrderGivesTheSameBitsWhateverTheAlgorithm) {
  const int size = 7;
  const int count = 5000;
  std::vector<std::vector<float>> results;
  for (int64_t direct_max : {1 << 20, 0, 0, -1}) {
    Config config;
    config.deterministic = true;
    config.direct_max_bytes = direct_max;
    config.tree_max_bytes = results.size() == 1 ? 1 << 20 : 0;
    World world =
        direct_max < 0 ? World(std::vector<Config>(size), SharedHost(size)) : World(size, config);
    std::vector<std::vector<float>> data;
    for (Rank r = 0; r < size; ++r) data.push_back(Rough(r, count));
    for (Rank r = 0; r < size; ++r) {
      Collective c;
      c.kind = CollectiveKind::kAllreduce;
      c.dtype = DataType::kFloat32;
      c.op = ReduceOp::kAverage;
      c.self = r;
      c.members = FirstRanks(size);
      c.buffers.push_back({data[r].data(), data[r].data(), count * 4, count * 4});
      world.backend(r).Submit(std::move(c));
    }
    for (Rank r = 0; r < size; ++r) EXPECT_TRUE(world.Wait(r, 0).status.ok());
    for (Rank r = 1; r < size; ++r) EXPECT_TRUE(data[r] == data[0]);
    results.push_back(data[0]);
  }
  for (const std::vector<float>& result : results) EXPECT_TRUE(result == results[0]);
}

// All have four significant digits, so that float32 holds their sums exactly.
TEST(SumsOf16BitFloatsInArenasAreRoundedOnce) {
  constexpr int64_t kCount = 30011;  // some in every part of the cache, a rest in the last one
  for (const DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      for (const int size : {3, 4, 7}) {
        World world(std::vector<Config>(size), SharedHost(size));
        std::vector<std::vector<char>> data(size, std::vector<char>(kCount * 2));
        std::vector<float> sums(kCount, 0.0F);
        for (Rank r = 0; r < size; ++r) {
          for (int64_t i = 0; i < kCount; ++i) {
            Store(dtype, &data[r][i * 2],
                  1.0 + static_cast<double>((r * 7919 + i * 31) % 997) / 64);
            sums[i] += static_cast<float>(Read(dtype, &data[r][i * 2]));
          }
          Collective c;
          c.kind = CollectiveKind::kAllreduce;
          c.dtype = dtype;
          c.op = op;
          c.self = r;
          c.members = FirstRanks(size);
          c.buffers.push_back({data[r].data(), data[r].data(), kCount * 2, kCount * 2});
          world.backend(r).Submit(std::move(c));
        }
        std::vector<char> expected(kCount * 2);
        for (int64_t i = 0; i < kCount; ++i) {
          Store(dtype, &expected[i * 2], sums[i] * (op == ReduceOp::kSum ? 1.0 : 1.0 / size));
        }
        for (Rank r = 0; r < size; ++r) {
          EXPECT_TRUE(world.Wait(r, 0).status.ok());
          EXPECT_TRUE(data[r] == expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_test
