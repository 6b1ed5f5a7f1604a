// NaN and infinities in a rank's input are found on that rank, once, whatever the algorithm.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::bad_values_test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

struct Case {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  bool in_place = false;
  bool expected = true;  // that what is not finite is reported
};

// The tensors of one rank, with their results.
struct Part {
  std::vector<std::vector<char>> inputs, outputs;
  Collective collective;
};

// Tensors of 1, `elements` and 3 blocks of `size` elements.
void Fill(const Case& c, int size, int self, int64_t elements, Part* part) {
  Collective& out = part->collective;
  out.kind = c.kind;
  out.dtype = c.dtype;
  out.op = c.op;
  out.prescale = c.prescale;
  out.members = FirstRanks(size);
  out.self = self;
  const int64_t width = DataTypeSize(c.dtype);
  const bool scatters = c.kind == CollectiveKind::kReducescatter;
  for (int64_t blocks : {int64_t{1}, elements, int64_t{3}}) {
    const int64_t count = blocks * size;
    std::vector<char> input(static_cast<size_t>(count * width));
    for (int64_t i = 0; i < count; ++i) Store(c.dtype, input.data() + i * width, 1.0);
    part->inputs.push_back(std::move(input));
    const int64_t block = blocks * width;
    part->outputs.emplace_back(static_cast<size_t>(scatters ? block : count * width));
    if (scatters) out.block_bytes.emplace_back(size, block);
  }
  for (size_t t = 0; t < part->inputs.size(); ++t) {
    char* input = part->inputs[t].data();
    const bool root = c.kind != CollectiveKind::kReduce || self == 0;
    char* output = !root ? nullptr : c.in_place ? input : part->outputs[t].data();
    const int64_t in = static_cast<int64_t>(part->inputs[t].size());
    const int64_t result = root ? static_cast<int64_t>(part->outputs[t].size()) : 0;
    out.buffers.push_back({input, output, in, result});
  }
}

void Put(const Case& c, Part* part, size_t tensor, int64_t element, double value) {
  const int64_t width = DataTypeSize(c.dtype);
  Store(c.dtype, part->inputs[tensor].data() + element * width, value);
}

std::string Text(const std::vector<BadValues>& found) {
  std::string text;
  for (const BadValues& bad : found) {
    text += std::to_string(bad.buffer) + ": " + std::to_string(bad.nans) + " NaN " +
            std::to_string(bad.infinities) + " Inf of " + std::to_string(bad.elements) + " " +
            DataTypeName(bad.dtype) + "; ";
  }
  return text;
}

// One rank has three such values, another one; all others have none.
void Run(World* world, const Case& c, int64_t elements, uint64_t sequence) {
  const int size = world->size();
  std::vector<Part> parts(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) Fill(c, size, r, elements, &parts[r]);
  const int64_t last = elements * size - 1;
  const int first_rank = static_cast<int>(sequence % static_cast<uint64_t>(size));
  const int second_rank = (first_rank + 1) % size;
  Put(c, &parts[first_rank], 1, 0, kNan);
  Put(c, &parts[first_rank], 1, last, -kInf);
  Put(c, &parts[first_rank], 2, 3 * size - 1, kNan);
  Put(c, &parts[second_rank], 0, size - 1, kInf);
  for (int r = 0; r < size; ++r) {
    parts[r].collective.sequence = sequence;
    world->backend(r).Submit(parts[r].collective);
  }
  const std::string what = std::string(CollectiveKindName(c.kind)) + " of " +
                           DataTypeName(c.dtype) + " by " + ReduceOpName(c.op) + ", " +
                           std::to_string(elements) + " elements, " + std::to_string(size) +
                           " ranks: ";
  const std::string dtype = DataTypeName(c.dtype);
  std::vector<Completion> completions;  // of all: then nobody uses the memory any more
  for (int r = 0; r < size; ++r) completions.push_back(world->Wait(r, sequence));
  for (int r = 0; r < size; ++r) {
    const Completion& completion = completions[static_cast<size_t>(r)];
    std::string expected;
    if (r == second_rank)
      expected += "0: 0 NaN 1 Inf of " + std::to_string(size) + " " + dtype + "; ";
    if (r == first_rank) {
      expected += "1: 1 NaN 1 Inf of " + std::to_string(elements * size) + " " + dtype + "; ";
      expected += "2: 1 NaN 0 Inf of " + std::to_string(3 * size) + " " + dtype + "; ";
    }
    ASSERT_EQ(what + completion.status.ToString(), what + OkStatus().ToString());
    ASSERT_EQ(what + Text(completion.bad_values), what + (c.expected ? expected : ""));
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (CollectiveKind kind :
         {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter, CollectiveKind::kReduce}) {
      cases.push_back({kind, dtype, ReduceOp::kSum});
      cases.push_back({kind, dtype, ReduceOp::kAverage, 0.5});
    }
    cases.push_back({CollectiveKind::kAllreduce, dtype, ReduceOp::kSum, 1.0, true});
    cases.push_back({CollectiveKind::kAllreduce, dtype, ReduceOp::kAverage, 0.5, true});
    cases.push_back({CollectiveKind::kAllreduce, dtype, ReduceOp::kAdasum});
  }
  // There infinity is a bound, not a mistake.
  const auto kMax = ReduceOp::kMax;
  cases.push_back({CollectiveKind::kAllreduce, DataType::kFloat32, kMax, 1.0, false, false});
  return cases;
}

TEST(FoundByEveryAlgorithm) {
  Config config = SmallConfig();
  config.check_values = ValueAction::kWarn;
  World world(3, config);
  uint64_t sequence = 1;
  for (int64_t elements : {1, 20011}) {
    for (const Case& c : Cases()) Run(&world, c, elements, sequence++);
  }
}

TEST(NothingIsLookedForUnlessItIsSwitchedOn) {
  World world(2, SmallConfig());
  Case c;
  c.expected = false;
  Run(&world, c, 1000, 1);
}

// After a failure all that follows ends in the same way, but without what was found before.
TEST(WhatWasFoundIsReportedForItsOwnCollectiveOnly) {
  Config config = SmallConfig();
  config.check_values = ValueAction::kWarn;
  std::vector<float> data(100000, 1.0f);
  World world(2, config);
  for (uint64_t sequence : {1, 2}) {
    Collective sum = Sum(&data, 0, 2, sequence);
    sum.prescale = 0.5;  // so that all is looked at before anything is sent
    if (sequence == 1) data[7] = static_cast<float>(kNan);
    world.backend(0).Submit(std::move(sum));
  }
  world.streams().WaitForBytes(1000);
  world.streams().Break(1);
  const Completion first = world.Wait(0, 1);
  const Completion second = world.Wait(0, 2);
  EXPECT_TRUE(first.status.code() == StatusCode::kUnavailable);
  EXPECT_EQ(Text(first.bad_values), std::string("0: 1 NaN 0 Inf of 100000 float32; "));
  EXPECT_TRUE(second.status.code() == StatusCode::kUnavailable);
  EXPECT_EQ(Text(second.bad_values), std::string());
}

}  // namespace
}  // namespace tfring::testing::bad_values_test
