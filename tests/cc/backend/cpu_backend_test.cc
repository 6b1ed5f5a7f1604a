// Allreduce, allgather, broadcast and barrier on the CPU backend, and a rank alone.
#include <cmath>
#include <cstring>
#include <string>

#include "ops/runtime/backend/local_backend.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::cpu_backend_test {
namespace {

// One all-reduce of several tensors of odd sizes on all members, with its memory.
struct Case {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int64_t elements = 0;
  bool in_place = false;
  double prescale = 1.0;
  double postscale = 1.0;
  double value = 0.0;  // of all elements of all members, unless it is 0

  std::vector<int64_t> TensorElements() const {
    const int64_t third = elements / 3;
    return {third, 0, elements > 0 ? 1 : 0, elements - third - (elements > 0 ? 1 : 0)};
  }
};

using Memory = std::vector<std::vector<char>>;  // by tensor

Collective Prepare(const Case& c, const std::vector<Rank>& members, int self, Memory* inputs,
                   Memory* outputs) {
  Collective collective;
  collective.kind = CollectiveKind::kAllreduce;
  collective.dtype = c.dtype;
  collective.op = c.op;
  collective.prescale = c.prescale;
  collective.postscale = c.postscale;
  collective.members = members;
  collective.self = self;
  const int64_t size = DataTypeSize(c.dtype);
  int64_t at = 0;
  for (int64_t count : c.TensorElements()) {
    std::vector<char> input(count * size + 1);
    for (int64_t i = 0; i < count; ++i, ++at) {
      const double value = c.value != 0 ? c.value : Value(c.op, members[self], at);
      Store(c.dtype, input.data() + i * size, value);
    }
    inputs->push_back(std::move(input));
    outputs->push_back(std::vector<char>(count * size + 1, 0x55));
  }
  for (size_t t = 0; t < inputs->size(); ++t) {
    char* input = (*inputs)[t].data();
    const int64_t bytes = static_cast<int64_t>((*inputs)[t].size()) - 1;
    collective.buffers.push_back({input, c.in_place ? input : (*outputs)[t].data(), bytes, bytes});
  }
  return collective;
}

bool Matches(const Case& c, const std::vector<Rank>& members, const Memory& results) {
  const int64_t size = DataTypeSize(c.dtype);
  const bool average = c.op == ReduceOp::kAverage;
  const bool floating = c.dtype == DataType::kFloat16 || c.dtype == DataType::kBfloat16 ||
                        c.dtype == DataType::kFloat32 || c.dtype == DataType::kFloat64;
  int64_t at = 0;
  for (const std::vector<char>& tensor : results) {
    const int64_t count = (static_cast<int64_t>(tensor.size()) - 1) / size;
    for (int64_t i = 0; i < count; ++i, ++at) {
      const double n = static_cast<double>(members.size());
      const double sum = c.value != 0 ? c.value * n : Expected(c.op, members, at);
      double expected = sum * c.prescale * c.postscale;
      if (average) expected /= n;
      const double actual = Read(c.dtype, tensor.data() + i * size);
      char stored[8];
      Store(c.dtype, stored, expected);
      const bool rounds = average && floating && c.value == 0;
      const double tolerance = rounds ? 0.01 * std::abs(expected) : 0.0;
      if (std::abs(actual - Read(c.dtype, stored)) > tolerance) return false;
    }
  }
  return true;
}

// Runs the cases one after the other, all submitted at once.
void RunCases(World* world, const std::vector<Rank>& members, const std::vector<Case>& cases) {
  const size_t n = members.size();
  std::vector<Memory> inputs(cases.size() * n), outputs(cases.size() * n);
  for (size_t m = 0; m < n; ++m) {
    for (size_t c = 0; c < cases.size(); ++c) {
      const size_t slot = c * n + m;
      Collective collective =
          Prepare(cases[c], members, static_cast<int>(m), &inputs[slot], &outputs[slot]);
      collective.sequence = c;
      world->backend(members[m]).Submit(std::move(collective));
    }
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    for (size_t m = 0; m < n; ++m) {
      const Completion completion = world->Wait(members[m], c);
      const std::string what =
          std::string(ReduceOpName(cases[c].op)) + " of " + DataTypeName(cases[c].dtype) + ", " +
          std::to_string(cases[c].elements) + " elements, " + std::to_string(n) + " ranks";
      ASSERT_EQ(what + completion.status.ToString(), what + OkStatus().ToString());
      const Memory& results = cases[c].in_place ? inputs[c * n + m] : outputs[c * n + m];
      ASSERT_EQ(what + (Matches(cases[c], members, results) ? "" : " is wrong"), what);
    }
  }
}

constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

std::vector<Case> AllCases(int size) {
  std::vector<Case> cases;
  for (DataType dtype : kReducibleTypes) {
    for (ReduceOp op : kOps) {
      for (int64_t elements : {0, 1, 2, size - 1, size, size + 1, 1000}) {
        cases.push_back({dtype, op, elements, cases.size() % 2 == 0});
      }
    }
    cases.push_back({dtype, ReduceOp::kSum, 20011, cases.size() % 2 == 0});
  }
  const DataType half = DataType::kFloat16;
  for (const double value : kExtremeHalves) {
    for (int64_t elements : {1, 200, 20011}) {
      const bool in_place = cases.size() % 2 == 0;
      cases.push_back({half, ReduceOp::kAverage, elements, in_place, 1.0, 1.0, value});
      cases.push_back({half, ReduceOp::kAverage, elements, !in_place, 2.0, 0.5, value / 2});
      cases.push_back({half, ReduceOp::kSum, elements, in_place, 1.0, 1.0 / size, value});
    }
  }
  return Sweep(std::move(cases));
}

TEST(AllreduceOfEveryTypeOpAndSize) {
  for (int size = 1; size <= 9; ++size) {
    StreamOptions options;
    options.seed = static_cast<uint32_t>(size);
    options.peek = size % 2 == 0;
    World world(size, SmallConfig(), options);
    RunCases(&world, FirstRanks(size), AllCases(size));
  }
}

TEST(AllreduceInArenas) {
  for (int size : {2, 3, 5, 8}) {
    World world(std::vector<Config>(size), SharedHost(size));
    std::vector<Case> cases = AllCases(size);
    cases.push_back({DataType::kFloat32, ReduceOp::kSum, 1000003, true});
    cases.push_back({DataType::kBfloat16, ReduceOp::kAverage, 400001, false});
    cases.push_back({DataType::kInt32, ReduceOp::kMax, 300000, false, 2.0, 3.0});
    RunCases(&world, FirstRanks(size), cases);
  }
  World some(std::vector<Config>(6), SharedHost(6));
  RunCases(&some, {1, 3, 4}, AllCases(3));
}

TEST(AllreduceInCanonicalOrder) {
  for (int size : {2, 3, 6, 9}) {
    Config config = SmallConfig();
    config.deterministic = true;
    World world(size, config);
    RunCases(&world, FirstRanks(size), AllCases(size));
  }
}

TEST(AllreduceAmongSomeRanks) {
  World world(6, SmallConfig());
  RunCases(&world, {1, 3, 4}, AllCases(3));
  World without_one(6, SmallConfig());
  RunCases(&without_one, {0, 1, 2, 4, 5}, AllCases(5));
}

TEST(ScalesApplyOnceBeforeAndAfter) {
  World world(3, SmallConfig());
  std::vector<Case> cases;
  for (DataType dtype : kReducibleTypes) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (int64_t elements : {4, 200, 3000}) {
        cases.push_back({dtype, op, elements, cases.size() % 2 == 0, 2.0, 3.0});
        cases.push_back({dtype, op, elements, cases.size() % 2 == 0, 4.0, 0.5});
      }
    }
  }
  RunCases(&world, FirstRanks(3), cases);
}

TEST(BytesSentByARingAreTwiceNMinusOneNthOfTheData) {
  for (int size = 2; size <= 8; ++size) {
    Config config = SmallConfig();
    config.direct_max_bytes = config.tree_max_bytes = 0;
    World world(size, config);
    const int64_t elements = 840 * 5;
    RunCases(&world, FirstRanks(size), {{DataType::kFloat32, ReduceOp::kSum, elements}});
    for (Rank r = 0; r < size; ++r) {
      const int64_t lead = LeadBytes(elements);  // one peer, one plan
      EXPECT_EQ((world.backend(r).bytes_sent() - lead) * size, 2 * (size - 1) * elements * 4);
    }
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

std::string Text(Rank rank, size_t tensor, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '.');
  for (int64_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>('a' + (rank * 5 + static_cast<int>(tensor) * 3 + i) % 26);
  }
  return text;
}

void RunAllgathers(World* world, int64_t unit) {
  const int size = world->size();
  std::vector<std::vector<int64_t>> blocks(3);
  std::vector<std::string> expected(3);
  for (size_t t = 0; t < 3; ++t) {
    for (Rank r = 0; r < size; ++r) {
      blocks[t].push_back(unit * ((r + static_cast<int>(t)) % 3));
      expected[t] += Text(r, t, blocks[t].back());
    }
  }
  std::vector<std::vector<std::string>> inputs(size), outputs(size);
  for (Rank r = 0; r < size; ++r) {
    Collective c;
    c.kind = CollectiveKind::kAllgather;
    c.self = r;
    c.members = FirstRanks(size);
    c.block_bytes = blocks;
    for (size_t t = 0; t < 3; ++t) {
      inputs[r].push_back(Text(r, t, blocks[t][r]));
      outputs[r].push_back(std::string(expected[t].size(), '?'));
    }
    for (size_t t = 0; t < 3; ++t) {
      c.buffers.push_back({inputs[r][t].data(), outputs[r][t].data(), blocks[t][r],
                           static_cast<int64_t>(expected[t].size())});
    }
    world->backend(r).Submit(std::move(c));
  }
  for (Rank r = 0; r < size; ++r) {
    ASSERT_EQ(world->Wait(r, 0).status.ToString(), OkStatus().ToString());
    for (size_t t = 0; t < 3; ++t) ASSERT_EQ(outputs[r][t], expected[t]);
  }
}

TEST(AllgatherOfSeveralTensorsWithDifferingBlocks) {
  for (int64_t unit : {1, 400}) {
    for (int size = 1; size <= 9; ++size) {
      World world(size, SmallConfig());
      RunAllgathers(&world, unit);
    }
  }
  for (int64_t unit : {1, 400, 300000}) {
    for (int size : {2, 3, 5}) {
      World world(std::vector<Config>(size), SharedHost(size));
      RunAllgathers(&world, unit);
    }
  }
}

void RunBroadcastsAndBarriers(World* world, int64_t large) {
  const int size = world->size();
  for (int root = 0; root < size; ++root) {
    const int64_t bytes = root % 2 == 0 ? 5 : large;
    std::vector<std::string> inputs, outputs;
    for (Rank r = 0; r < size; ++r) inputs.push_back(Text(r, 0, bytes));
    outputs.resize(size, std::string(static_cast<size_t>(bytes), '?'));
    for (Rank r = 0; r < size; ++r) {
      Collective c;
      c.kind = CollectiveKind::kBroadcast;
      c.sequence = static_cast<uint64_t>(2 * root);
      c.root = root;
      c.self = r;
      c.members = FirstRanks(size);
      Collective barrier;
      barrier.sequence = c.sequence + 1;
      barrier.self = r;
      barrier.members = c.members;
      c.buffers.push_back({r == root ? inputs[r].data() : nullptr, outputs[r].data(),
                           r == root ? bytes : 0, bytes});
      world->backend(r).Submit(std::move(c));
      world->backend(r).Submit(std::move(barrier));
    }
    for (Rank r = 0; r < size; ++r) {
      ASSERT_TRUE(world->Wait(r, 2 * root + 1).status.ok());
      ASSERT_EQ(outputs[r], inputs[root]);
    }
  }
}

TEST(BroadcastFromEveryRootThenABarrier) {
  for (int size = 1; size <= 9; ++size) {
    World world(size, SmallConfig());
    RunBroadcastsAndBarriers(&world, 3001);
  }
  for (int size : {2, 3, 5}) {
    World world(std::vector<Config>(size), SharedHost(size));
    RunBroadcastsAndBarriers(&world, 3000001);
  }
}

TEST(ARankAloneCopiesAndScales) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Completion> completions;
  LocalBackend backend(Config(), [&](Completion completion) {
    std::lock_guard<std::mutex> lock(mutex);
    completions.push_back(std::move(completion));
    changed.notify_all();
  });
  std::vector<Case> cases;
  for (DataType dtype : kReducibleTypes) {
    for (ReduceOp op : kOps) {
      cases.push_back({dtype, op, 100, cases.size() % 2 == 0});
      cases.push_back({dtype, op, 100, cases.size() % 2 == 0, 4.0, 0.5});
    }
  }
  std::vector<Memory> inputs(cases.size()), outputs(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    backend.Submit(Prepare(cases[i], {0}, 0, &inputs[i], &outputs[i]));
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return completions.size() == cases.size(); });
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(completions[i].status.ok());
    EXPECT_TRUE(Matches(cases[i], {0}, cases[i].in_place ? inputs[i] : outputs[i]));
  }
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_test
