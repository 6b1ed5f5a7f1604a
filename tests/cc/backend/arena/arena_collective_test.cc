// Random collectives in arenas, by ranks whose turns come in random order.
#include "ops/runtime/backend/arena/arena_collective.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "tests/cc/backend/arena/fake_host_memory.h"
#include "tests/cc/backend/arena/random_plans.h"
#include "tests/cc/test.h"

namespace tfring::testing::arena_collective_test {
namespace {

// A rank, with the plans that it takes part in.
struct Runner {
  std::unique_ptr<ArenaCollective> machine;
  std::vector<std::pair<RandomPlan*, int>> todo;  // and the position in it
  size_t next = 0;
  bool drowsy = false;  // it could not go on, and will sleep for `awaited`
  Rank awaited = kNoRank;

  bool Through() const { return machine->done() && next == todo.size(); }
};

// When the members of a batch of a lock entered it, as its parts have it.
void CheckEntered(const RandomPlan& plan, const AskTimes& found) {
  std::vector<std::pair<TimePoint, Rank>> times;
  for (size_t m = 0; m < plan.members().size(); ++m) {
    times.emplace_back(plan.part(static_cast<int>(m)).entered, plan.members()[m]);
  }
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  EXPECT_EQ(found.first, times[0].first);
  EXPECT_EQ(found.second_last, times[n - 2].first);
  EXPECT_EQ(found.last, times[n - 1].first);
  if (times[n - 2].first < times[n - 1].first) EXPECT_EQ(found.last_rank, times[n - 1].second);
}

// One turn of a rank.
void Turn(FakeHost* host, Rank rank, Runner* runner, Random* random) {
  ArenaCollective& machine = *runner->machine;
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
    const Collective& part = plan->part(member);
    const bool runs = ArenaCollective::Runs(part);
    machine.Start(part, runs ? ResolveReduction(part) : Reduction());
  }
  const bool can = machine.CanAdvance();
  const Result<bool> moved = machine.Advance();
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ(*moved, can);
  if (machine.done()) {
    const auto [plan, member] = runner->todo[runner->next - 1];
    EXPECT_EQ(machine.recalled(), plan->recalled());
    const bool told = plan->part(member).locked && !plan->recalled();
    if (told) CheckEntered(*plan, machine.entered());
    if (!plan->part(member).locked) EXPECT_EQ(machine.entered().last_rank, kNoRank);
    const bool untouched = plan->recalled() || !ArenaCollective::Runs(plan->part(member));
    EXPECT_EQ(plan->Wrong(member, untouched), "");
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
  std::vector<std::unique_ptr<RandomPlan>> all;
  std::vector<Runner> runners(size);
  for (Rank rank = 0; rank < size; ++rank) {
    runners[rank].machine = std::make_unique<ArenaCollective>(host.Of(rank), rank);
  }
  for (int number = 0; number < plans; ++number) {
    all.push_back(std::make_unique<RandomPlan>(size, 10 + number, seed % 8 == 0, &random));
    const std::vector<Rank>& members = all.back()->members();
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

TEST(RandomPlansOfRandomMembersGiveTheRightBits) {
  for (int seed = 1; seed <= Sweep(80) && Failures() == 0; ++seed) RunSeed(seed, 30);
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

TEST(MembersThatRunSomethingElseAreFound) {
  FakeHost host(2);
  std::vector<float> a(10, 1.0f);
  std::vector<float> b(11, 1.0f);
  const Collective first = Part(&a, 0, 7);
  const Collective second = Part(&b, 1, 7);
  ArenaCollective zero(host.Of(0), 0);
  ArenaCollective one(host.Of(1), 1);
  zero.Start(first, ResolveReduction(first));
  one.Start(second, ResolveReduction(second));
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
  ArenaCollective zero(host.Of(0), 0);
  zero.Start(part, ResolveReduction(part));
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

TEST(TheRootOfABroadcastWaitsOnlyForPlaces) {
  FakeHost host(3);
  for (size_t elements : {size_t{4}, size_t{1000}, size_t{800000}}) {
    std::vector<float> data(elements, 1.0f);
    Collective part = Part(&data, 0, 7 + elements);
    part.kind = CollectiveKind::kBroadcast;
    part.members = {0, 1, 2};
    ArenaCollective root(host.Of(0), 0);
    root.Start(part, Reduction());
    while (!root.done() && *root.Advance()) {
    }
    EXPECT_EQ(root.done(), elements < 800000);
  }
  std::vector<float> data(800000, 1.0f);
  Collective part = Part(&data, 0, 900000);
  part.kind = CollectiveKind::kBroadcast;
  ArenaCollective root(host.Of(0), 0);
  root.Start(part, Reduction());
  while (*root.Advance()) {
  }
  EXPECT_EQ(root.Awaited(), 1);
  ASSERT_EQ(root.Waits().size(), size_t{1});
  EXPECT_TRUE(root.Waits()[0].peer == 1 && !root.Waits()[0].receives);
  EXPECT_EQ(root.Waits()[0].bytes, 3200000 - (128 << 10));
}

}  // namespace
}  // namespace tfring::testing::arena_collective_test
