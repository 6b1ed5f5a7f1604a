// NaN and infinities in a rank's input are found on that rank, before they are added to others.
#include <cmath>
#include <string>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::bad_values_test {
namespace {

std::string Text(const std::vector<BadValues>& found) {
  std::string text;
  for (const BadValues& bad : found) {
    text += std::to_string(bad.buffer) + ": " + std::to_string(bad.nans) + " NaN " +
            std::to_string(bad.infinities) + " Inf of " + std::to_string(bad.elements) + " " +
            DataTypeName(bad.dtype) + "; ";
  }
  return text;
}

// What is found in tensors of 2, 20011 and 3 elements. The last two have bad values.
std::string Found(CollectiveKind kind, DataType dtype, ReduceOp op,
                  const std::vector<Rank>& members = {0, 1}) {
  Collective c;
  c.kind = kind;
  c.dtype = dtype;
  c.op = op;
  c.members = members;
  const int64_t width = DataTypeSize(dtype);
  std::vector<std::vector<char>> inputs;
  for (int64_t elements : {2, 20011, 3}) {
    inputs.emplace_back(static_cast<size_t>(elements * width));
    for (int64_t i = 0; i < elements; ++i) Store(dtype, inputs.back().data() + i * width, 1.0);
  }
  if (IsReducible(dtype) && DataTypeName(dtype)[0] != 'i') {
    Store(dtype, inputs[1].data(), NAN);
    Store(dtype, inputs[1].data() + 20010 * width, -INFINITY);
    Store(dtype, inputs[2].data() + 2 * width, NAN);
  }
  for (const std::vector<char>& input : inputs) {
    c.buffers.push_back({input.data(), nullptr, static_cast<int64_t>(input.size()), 0});
  }
  return Text(FindBadValues(c));
}

TEST(BadValuesAreCountedByTensor) {
  for (DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    const std::string name = DataTypeName(dtype);
    const std::string expected =
        "1: 1 NaN 1 Inf of 20011 " + name + "; 2: 1 NaN 0 Inf of 3 " + name + "; ";
    for (CollectiveKind kind :
         {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter, CollectiveKind::kReduce}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kAdasum}) {
        EXPECT_EQ(Found(kind, dtype, op), expected);
      }
    }
  }
}

// Infinity is a bound of Min and Max, and no mistake.
TEST(NothingIsFoundWhereNothingIsAdded) {
  const auto kFloat = DataType::kFloat32;
  EXPECT_EQ(Found(CollectiveKind::kAllreduce, kFloat, ReduceOp::kMax), "");
  EXPECT_EQ(Found(CollectiveKind::kAllreduce, DataType::kInt32, ReduceOp::kSum), "");
  EXPECT_EQ(Found(CollectiveKind::kBroadcast, kFloat, ReduceOp::kSum), "");
  EXPECT_EQ(Found(CollectiveKind::kAllreduce, kFloat, ReduceOp::kSum, {0}), "");
}

TEST(ValuesAreLookedAtWhereThatIsSwitchedOn) {
  for (const bool arenas : {false, true}) {
    for (const ValueAction action : {ValueAction::kIgnore, ValueAction::kWarn}) {
      Config config = SmallConfig();
      config.check_values = action;
      std::vector<std::vector<float>> data(2, std::vector<float>(1000, 1.0f));
      data[1][7] = NAN;
      const std::vector<Config> configs(2, config);
      World world = arenas ? World(configs, SharedHost(2)) : World(configs);
      for (Rank r = 0; r < 2; ++r) world.backend(r).Submit(Sum(&data[r], r, 2, 1));
      EXPECT_EQ(Text(world.Wait(0, 1).bad_values), "");
      EXPECT_EQ(Text(world.Wait(1, 1).bad_values),
                action == ValueAction::kWarn ? "0: 1 NaN 0 Inf of 1000 float32; " : "");
    }
  }
}

// After a failure all that follows ends in the same way, but without what was found before.
TEST(WhatWasFoundIsReportedForItsOwnCollectiveOnly) {
  Config config = SmallConfig();
  config.check_values = ValueAction::kWarn;
  std::vector<float> bad(100000, 1.0f);
  std::vector<float> good = bad;
  bad[7] = NAN;
  World world(2, config);
  world.backend(0).Submit(Sum(&bad, 0, 2, 1));
  world.backend(0).Submit(Sum(&good, 0, 2, 2));
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
