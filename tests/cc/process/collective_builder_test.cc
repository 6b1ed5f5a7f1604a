// From a plan to what the backend is asked to do, for every kind of collective.
#include "ops/runtime/process/collective_builder.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cc/process/fake_stream.h"
#include "tests/cc/test.h"

namespace tfring::collective_builder_test {
namespace {

constexpr int64_t kHuge = INT64_MAX / 2;
using Dims = std::vector<int64_t>;

// One call of float32 tensors on rank 1 of the ranks 0, 1 and 2.
struct Case {
  Case(CollectiveKind kind, std::vector<Shape> shapes, Dims negotiated_values) {
    run.plan.sequence = 7;
    run.plan.kind = kind;
    run.plan.dtype = DataType::kFloat32;
    run.plan.items.push_back({"x", 0, std::move(negotiated_values)});
    run.members = {0, 1, 2};
    for (const Shape& shape : shapes) {
      inputs.emplace_back(static_cast<size_t>(NumElements(shape)) + 1);
      call.call.buffers.push_back({inputs.back().data(), inputs.back().data(),
                                   NumElements(shape) * 4, NumElements(shape) * 4});
    }
    call.shapes = std::move(shapes);
    call.call.allocate = [this](int, const Shape& shape) -> Result<void*> {
      if (!memory) return Internal("full");
      output_shapes.push_back(shape);
      outputs.emplace_back(static_cast<size_t>(NumElements(shape)) + 1);
      return static_cast<void*>(outputs.back().data());
    };
    call.call.announce = [this](const Dims& values) { announced = values; };
  }
  Case(const Case&) = delete;

  Result<Collective> Build(Rank self = 1) { return BuildCollective(run, self, {&call}); }

  PlanRun run;
  RunningCall call;
  bool memory = true;
  std::vector<std::vector<float>> inputs, outputs;
  std::vector<Shape> output_shapes;
  Dims announced;
};

// What the framework allocates now may be memory that its stream still uses.
TEST(AStreamIsReadyOnlyAfterTheLastAllocation) {
  Case c(CollectiveKind::kAllgather, {{2}, {3}}, {1, 2, 3, 1, 3, 3});
  const auto stream = std::make_shared<FakeStream>();
  c.call.call.stream = stream;
  const auto allocate = c.call.call.allocate;
  c.call.call.allocate = [&](int tensor, const Shape& shape) {
    EXPECT_EQ(stream->marked, 0);
    return allocate(tensor, shape);
  };
  auto built = c.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(c.output_shapes.size(), 2u);
  EXPECT_EQ(stream->marked, 1);
  Case failing(CollectiveKind::kAllgather, {{2}}, {1, 2, 3});
  failing.call.call.stream = stream;
  stream->ready = Internal("the device is broken");
  EXPECT_CONTAINS(failing.Build().status().message(), "the device is broken");
}

TEST(ScratchOfADeviceIsInItsMemory) {
  Case c(CollectiveKind::kReducescatter, {{3, 2}}, {});
  c.memory = false;
  const auto stream = std::make_shared<FakeStream>();
  c.call.call.stream = stream;
  auto built = c.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE(built->buffers[0].output == stream->scratch->data());
  EXPECT_EQ(stream->scratch->size(), 8u);
  ASSERT_EQ(c.call.scratch.size(), 1u);
  EXPECT_EQ(stream->scratch.use_count(), 2);
  EXPECT_CONTAINS(c.call.local_failure.message(), "full");
  stream->has_scratch = false;
  EXPECT_CONTAINS(c.Build().status().message(), "full");
}

}  // namespace
}  // namespace tfring::collective_builder_test
