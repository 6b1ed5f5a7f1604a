// Random allreduces in arenas, by ranks whose turns come in random order.
#include "ops/runtime/backend/arena/arena_allreduce.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "tests/cc/backend/arena/fake_host_memory.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

using Random = std::mt19937;

int64_t Below(Random* random, int64_t n) { return static_cast<int64_t>((*random)() % n); }

// One plan, with the tensors of all its members.
struct Plan {
  Collective of_all;  // without `self` and buffers
  int64_t elements = 0;
  bool in_place = false;
  std::vector<bool> voids;
  std::vector<std::vector<char>> inputs;  // by member
  std::vector<std::vector<char>> outputs;
  std::vector<Collective> parts;
  std::vector<char> expected;
};

// Sums of floats in the canonical order: neighbours first, an odd one out moves up.
std::vector<char> CanonicalSum(const Plan& plan) {
  std::vector<char> sums(static_cast<size_t>(plan.elements) * sizeof(float));
  for (int64_t i = 0; i < plan.elements; ++i) {
    std::vector<float> level;
    for (const std::vector<char>& input : plan.inputs) {
      level.push_back(Get<float>(input.data() + i * 4));
    }
    while (level.size() > 1) {
      std::vector<float> above;
      for (size_t m = 0; m + 1 < level.size(); m += 2) above.push_back(level[m] + level[m + 1]);
      if (level.size() % 2 == 1) above.push_back(level.back());
      level = above;
    }
    const float sum = level[0] * static_cast<float>(plan.of_all.postscale);
    std::memcpy(sums.data() + i * 4, &sum, sizeof(sum));
  }
  return sums;
}

std::vector<char> ExpectedOf(const Plan& plan) {
  const Collective& c = plan.of_all;
  if (c.dtype == DataType::kFloat32) return CanonicalSum(plan);
  const int64_t size = DataTypeSize(c.dtype);
  std::vector<Rank> positions(c.members.size());
  for (size_t m = 0; m < positions.size(); ++m) positions[m] = static_cast<Rank>(m);
  std::vector<char> values(static_cast<size_t>(plan.elements * size));
  for (int64_t i = 0; i < plan.elements; ++i) {
    Store(c.dtype, values.data() + i * size, Expected(c.op, positions, i) * c.prescale);
  }
  return values;
}

void FillInputs(Plan* plan, Random* random) {
  const Collective& c = plan->of_all;
  const int64_t size = DataTypeSize(c.dtype);
  for (size_t m = 0; m < c.members.size(); ++m) {
    std::vector<char> input(static_cast<size_t>(plan->elements * size));
    for (int64_t i = 0; i < plan->elements; ++i) {
      const double value = c.dtype == DataType::kFloat32
                               ? static_cast<double>((*random)()) / 1e6 - 2000
                               : Value(c.op, static_cast<Rank>(m), i);
      Store(c.dtype, input.data() + i * size, value);
    }
    plan->inputs.push_back(std::move(input));
  }
}

// Divides the tensors of each member into the same buffers at random elements.
void MakeParts(Plan* plan, Random* random) {
  const int64_t size = DataTypeSize(plan->of_all.dtype);
  std::vector<int64_t> cuts = {0, plan->elements};
  for (int64_t n = Below(random, 4); n > 0; --n) cuts.push_back(Below(random, plan->elements + 1));
  std::sort(cuts.begin(), cuts.end());
  plan->outputs = plan->inputs;
  for (size_t m = 0; m < plan->inputs.size(); ++m) {
    Collective part = plan->of_all;
    part.self = static_cast<int>(m);
    part.is_void = plan->voids[m];
    char* out = plan->outputs[m].data();
    const char* in = plan->in_place ? out : plan->inputs[m].data();
    for (size_t i = 0; i + 1 < cuts.size() && !part.is_void; ++i) {
      const int64_t bytes = (cuts[i + 1] - cuts[i]) * size;
      part.buffers.push_back({in + cuts[i] * size, out + cuts[i] * size, bytes, bytes});
    }
    if (!plan->in_place) std::fill(plan->outputs[m].begin(), plan->outputs[m].end(), '\x55');
    plan->parts.push_back(std::move(part));
  }
}

std::vector<Rank> RandomMembers(int size, Random* random) {
  std::vector<Rank> ranks;
  while (ranks.size() < 2) {
    ranks.clear();
    const bool all = Below(random, 3) > 0;
    for (Rank rank = 0; rank < size; ++rank) {
      if (all || Below(random, 2) == 0) ranks.push_back(rank);
    }
  }
  return ranks;
}

std::unique_ptr<Plan> RandomPlan(int size, uint64_t sequence, Random* random) {
  auto plan = std::make_unique<Plan>();
  Collective& c = plan->of_all;
  c.sequence = sequence;
  c.what = "allreduce of 'x'";
  c.kind = CollectiveKind::kAllreduce;
  c.members = RandomMembers(size, random);
  c.dtype = Below(random, 2) == 0 ? DataType::kFloat32
                                  : kReducibleTypes[Below(random, std::size(kReducibleTypes))];
  if (c.dtype != DataType::kFloat32) {
    const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
    c.op = ops[Below(random, 4)];
    if (c.op == ReduceOp::kSum && c.dtype != DataType::kInt8) c.prescale = 2;
  } else {
    c.postscale = Below(random, 2) == 0 ? 1.0 : 0.5;
  }
  const int64_t most[] = {8, 64, 1000, 40000, 300000};
  plan->elements = 1 + Below(random, most[Below(random, 10) == 0 ? 4 : Below(random, 4)]);
  plan->in_place = Below(random, 2) == 0;
  c.locked = Below(random, 4) == 0;
  for (size_t m = 0; m < c.members.size(); ++m) {
    plan->voids.push_back(c.locked && Below(random, 6) == 0);
  }
  // The entry to a batch of another kind.
  if (c.locked && Below(random, 4) == 0) c.kind = CollectiveKind::kBroadcast;
  FillInputs(plan.get(), random);
  MakeParts(plan.get(), random);
  plan->expected = ExpectedOf(*plan);
  return plan;
}

bool Recalled(const Plan& plan) {
  return std::find(plan.voids.begin(), plan.voids.end(), true) != plan.voids.end();
}

void CheckResult(const Plan& plan, int member, const ArenaAllreduce& machine) {
  EXPECT_EQ(machine.recalled(), Recalled(plan));
  const std::vector<char>& output = plan.outputs[member];
  if (Recalled(plan) || plan.of_all.kind != CollectiveKind::kAllreduce) {
    const std::vector<char> before(output.size(), '\x55');
    EXPECT_TRUE(output == (plan.in_place ? plan.inputs[member] : before));
  } else {
    EXPECT_TRUE(output == plan.expected);
  }
}

// A rank, with the plans that it takes part in.
struct Runner {
  std::unique_ptr<ArenaAllreduce> machine;
  std::vector<std::pair<Plan*, int>> todo;  // and the position in it
  size_t next = 0;
  bool drowsy = false;  // it could not go on, and will sleep for `awaited`
  Rank awaited = kNoRank;

  bool Through() const { return machine->done() && next == todo.size(); }
};

// One turn of a rank.
void Turn(FakeHost* host, Rank rank, Runner* runner, Random* random) {
  ArenaAllreduce& machine = *runner->machine;
  if (runner->drowsy) {
    // Others have had turns since: what ArenaRunner looks at again before it sleeps.
    runner->drowsy = false;
    if (!machine.CanAdvance() && machine.Awaited() == runner->awaited) {
      host->GoToSleep(rank, runner->awaited);
      return;
    }
  }
  if (machine.done()) {
    const auto [plan, member] = runner->todo[runner->next++];
    machine.Start(plan->parts[member], ResolveReduction(plan->parts[member]), false);
  }
  const bool can = machine.CanAdvance();
  const Result<bool> moved = machine.Advance();
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ(*moved, can);
  if (machine.done()) {
    const auto [plan, member] = runner->todo[runner->next - 1];
    CheckResult(*plan, member, machine);
  } else if (!*moved && Below(random, 2) == 0) {
    runner->drowsy = true;
    runner->awaited = machine.Awaited();
  }
}

void RunSeed(uint32_t seed, int plans) {
  Random random(seed);
  const int size = 2 + static_cast<int>(Below(&random, 5));
  const Rank slow = static_cast<Rank>(Below(&random, size));
  FakeHost host(size);
  std::vector<std::unique_ptr<Plan>> all;
  std::vector<Runner> runners(size);
  for (Rank rank = 0; rank < size; ++rank) {
    runners[rank].machine = std::make_unique<ArenaAllreduce>(host.Of(rank), rank);
  }
  for (int number = 0; number < plans; ++number) {
    all.push_back(RandomPlan(size, 10 + number, &random));
    const std::vector<Rank>& members = all.back()->of_all.members;
    for (size_t m = 0; m < members.size(); ++m) {
      runners[members[m]].todo.push_back({all.back().get(), static_cast<int>(m)});
    }
  }
  const int failures = Failures();
  while (Failures() == failures) {
    std::vector<Rank> awake;
    bool through = true;
    for (Rank rank = 0; rank < size; ++rank) {
      if (runners[rank].Through()) continue;
      through = false;
      if (!host.Sleeps(rank)) awake.push_back(rank);
    }
    if (through) return;
    EXPECT_TRUE(!awake.empty());  // else nobody will ever wake them
    if (awake.empty()) break;
    // One rank is slow, and now and then another gets far ahead.
    const Rank rank = awake[Below(&random, static_cast<int64_t>(awake.size()))];
    if (rank == slow && Below(&random, 30) > 0 && awake.size() > 1) continue;
    for (int64_t turns = Below(&random, 20); turns >= 0; --turns) {
      if (runners[rank].Through() || host.Sleeps(rank)) break;
      Turn(&host, rank, &runners[rank], &random);
      if (runners[rank].drowsy) break;
    }
  }
  std::cerr << "seed " << seed << "\n";
}

TEST(RandomPlansOfRandomMembersGiveTheCanonicalBits) {
  for (uint32_t seed = 1; seed <= 80 && Failures() == 0; ++seed) RunSeed(seed, 30);
}

Collective Part(std::vector<float>* data, int self, uint64_t sequence) {
  Collective c;
  c.sequence = sequence;
  c.kind = CollectiveKind::kAllreduce;
  c.dtype = DataType::kFloat32;
  c.members = {0, 1};
  c.self = self;
  const int64_t bytes = static_cast<int64_t>(data->size()) * 4;
  c.buffers = {{data->data(), data->data(), bytes, bytes}};
  return c;
}

TEST(ARankThatWaitsForAPlaceIsWokenByItsLastReader) {
  FakeHost host(3);
  std::vector<std::vector<float>> data(6, std::vector<float>(4, 1.0f));
  const auto part = [&](int of, int self, Rank other, uint64_t sequence) {
    Collective c = Part(&data[of], self, sequence);
    c.members[1] = other;
    return c;
  };
  const Collective parts[] = {part(0, 0, 1, 7), part(1, 1, 1, 7), part(2, 0, 2, 8),
                              part(3, 1, 2, 8), part(4, 0, 2, 9), part(5, 1, 2, 9)};
  ArenaAllreduce zero(host.Of(0), 0);
  ArenaAllreduce one(host.Of(1), 1);
  ArenaAllreduce two(host.Of(2), 2);
  const auto start = [](ArenaAllreduce* machine, const Collective& collective) {
    machine->Start(collective, ResolveReduction(collective), false);
    EXPECT_TRUE(*machine->Advance());
  };
  start(&one, parts[1]);
  start(&zero, parts[0]);
  EXPECT_TRUE(*zero.Advance() && zero.done() && !one.done());
  start(&two, parts[3]);
  start(&zero, parts[2]);
  EXPECT_TRUE(*zero.Advance() && zero.done());
  EXPECT_TRUE(*two.Advance() && two.done());
  zero.Start(parts[4], ResolveReduction(parts[4]), false);
  EXPECT_TRUE(!*zero.Advance());  // rank 1 has not read plan 7 yet
  host.GoToSleep(0, zero.Awaited());
  start(&two, parts[5]);
  EXPECT_TRUE(host.Sleeps(0) && !zero.CanAdvance());
  ASSERT_EQ(zero.Waits().size(), size_t{1});
  EXPECT_EQ(zero.Waits()[0].peer, 1);
  EXPECT_TRUE(*one.Advance() && one.done());
  EXPECT_TRUE(!host.Sleeps(0) && *zero.Advance());
}

TEST(MembersThatRunSomethingElseAreFound) {
  FakeHost host(2);
  std::vector<float> a(10, 1.0f);
  std::vector<float> b(11, 1.0f);
  const Collective first = Part(&a, 0, 7);
  const Collective second = Part(&b, 1, 7);
  ArenaAllreduce zero(host.Of(0), 0);
  ArenaAllreduce one(host.Of(1), 1);
  zero.Start(first, ResolveReduction(first), false);
  one.Start(second, ResolveReduction(second), false);
  EXPECT_TRUE(zero.Advance().ok() && one.Advance().ok());
  const Result<bool> moved = zero.Advance();
  ASSERT_TRUE(!moved.ok());
  EXPECT_CONTAINS(moved.status().message(),
                  "the arena of rank 1 is out of step: plan 7 with 44 bytes came where plan 7 with "
                  "40 bytes");
  EXPECT_EQ(a[0], 1.0f);
}

TEST(WhatIsWaitedForIsKnown) {
  FakeHost host(2);
  std::vector<float> a(200000, 1.0f);
  const Collective part = Part(&a, 0, 7);
  ArenaAllreduce zero(host.Of(0), 0);
  zero.Start(part, ResolveReduction(part), false);
  while (*zero.Advance()) {
  }
  EXPECT_EQ(zero.Awaited(), 1);
  ASSERT_EQ(zero.Waits().size(), size_t{1});
  EXPECT_EQ(zero.Waits()[0].peer, 1);
  EXPECT_EQ(zero.Waits()[0].bytes, 800000);
  EXPECT_EQ(zero.ClosedMember(), kNoRank);
  host.Close(1);
  EXPECT_EQ(zero.ClosedMember(), 1);
}

TEST(NaNIsFoundInWhatIsStagedAndInTheOwnSlice) {
  for (size_t elements : {size_t{4}, size_t{1000}, size_t{200000}}) {
    FakeHost host(2);
    std::vector<float> a(elements, 1.0f);
    std::vector<float> b(elements, 1.0f);
    a[0] = NAN;
    a[elements - 1] = INFINITY;
    const Collective parts[] = {Part(&a, 0, 7), Part(&b, 1, 7)};
    ArenaAllreduce zero(host.Of(0), 0);
    ArenaAllreduce one(host.Of(1), 1);
    zero.Start(parts[0], ResolveReduction(parts[0]), true);
    one.Start(parts[1], ResolveReduction(parts[1]), true);
    while (!zero.done() || !one.done()) {
      EXPECT_TRUE(zero.Advance().ok() && one.Advance().ok());
    }
    const std::vector<BadValues> bad = zero.TakeBadValues();
    ASSERT_EQ(bad.size(), size_t{1});
    EXPECT_EQ(bad[0].nans, 1);
    EXPECT_EQ(bad[0].infinities, 1);
    EXPECT_EQ(bad[0].elements, static_cast<int64_t>(elements));
    EXPECT_TRUE(one.TakeBadValues().empty());
  }
}

}  // namespace
}  // namespace tfring::testing
