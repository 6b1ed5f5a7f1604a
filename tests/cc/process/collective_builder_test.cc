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

TEST(AllgatherAndGatherJoinRows) {
  Case all(CollectiveKind::kAllgather, {{2, 3}, {0}}, {1, 2, 3, 5, 0, 0});
  auto built = all.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE((all.output_shapes == std::vector<Shape>{{6, 3}, {5}}));
  EXPECT_TRUE((built->block_bytes == std::vector<Dims>{{12, 24, 36}, {20, 0, 0}}));
  EXPECT_EQ(built->buffers[0].output_bytes, int64_t{72});
  for (Rank root : {0, 1}) {
    Case one(CollectiveKind::kGather, {{2, 3}}, {1, 2, 3});
    one.run.plan.root = root;
    built = one.Build();
    ASSERT_TRUE(built.ok());
    EXPECT_EQ(built->root, root);
    EXPECT_TRUE((one.output_shapes == std::vector<Shape>{{root == 1 ? 6 : 0, 3}}));
    EXPECT_EQ(built->buffers[0].output_bytes, int64_t{root == 1 ? 72 : 0});
    EXPECT_TRUE((built->block_bytes == std::vector<Dims>{{12, 24, 36}}));
  }
}

TEST(NoRowsOfAnySizeAreNoBytes) {
  const Shape none = {0, kHuge, kHuge};
  Case gather(CollectiveKind::kAllgather, {none}, {0, 0, 0});
  EXPECT_TRUE(gather.Build().ok());
  EXPECT_TRUE((gather.output_shapes == std::vector<Shape>{none}));
  Case scatter(CollectiveKind::kReducescatter, {none}, {});
  EXPECT_TRUE(scatter.Build().ok());
}

TEST(ReducescatterGivesTheFirstMembersOneRowMore) {
  const Dims expected[] = {{8, 8, 0}, {8, 8, 8}, {16, 8, 8}};
  for (int64_t rows : {2, 3, 4}) {
    Case c(CollectiveKind::kReducescatter, {{rows, 2}}, {});
    auto built = c.Build();
    ASSERT_TRUE(built.ok());
    EXPECT_TRUE((built->block_bytes == std::vector<Dims>{expected[rows - 2]}));
    EXPECT_TRUE((c.output_shapes == std::vector<Shape>{{1, 2}}));
  }
}

TEST(AlltoallReadsItsRowAndItsColumn) {
  Case c(CollectiveKind::kAlltoall, {{6, 2}}, {1, 0, 5, 2, 0, 4});
  auto built = c.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE((built->send_bytes == std::vector<Dims>{{8, 0, 40}}));
  EXPECT_TRUE((built->block_bytes == std::vector<Dims>{{16, 0, 32}}));
  EXPECT_TRUE((c.output_shapes == std::vector<Shape>{{6, 2}}));
  EXPECT_TRUE((c.announced == Dims{2, 0, 4}));
}

TEST(ScatterAndSendReadTheInputOfTheRootOnly) {
  for (Rank root : {0, 1}) {
    Case c(CollectiveKind::kScatter, {{root == 1 ? 5 : 0, 2}}, {2, 0, 3});
    c.run.plan.root = root;
    auto built = c.Build();
    ASSERT_TRUE(built.ok());
    EXPECT_TRUE((c.output_shapes == std::vector<Shape>{{0, 2}}));
    EXPECT_TRUE((built->block_bytes == std::vector<Dims>{{16, 0, 24}}));
    EXPECT_EQ(built->buffers[0].input != nullptr, root == 1);
  }
}

TEST(SendAndRecvAreBetweenTwo) {
  Case source(CollectiveKind::kSendRecv, {{4, 2}}, {4, 2});
  source.run.plan.root = 1;
  source.run.plan.peer = 0;
  source.run.members = {0, 1};
  auto built = source.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE((built->members == std::vector<Rank>{0, 1}));
  EXPECT_EQ(built->root, 1);
  EXPECT_TRUE(source.output_shapes.empty() && built->buffers[0].output == nullptr);
  EXPECT_EQ(built->buffers[0].input_bytes, int64_t{32});
  for (const auto& shapes : {std::vector<Shape>{}, {{-1, 2}}, {{4, 2}}}) {
    Case receiver(CollectiveKind::kSendRecv, {}, {4, 2});
    receiver.call.shapes = shapes;
    receiver.run.plan.root = 2;
    receiver.run.plan.peer = 1;
    receiver.run.members = {1, 2};
    built = receiver.Build();
    ASSERT_TRUE(built.ok());
    EXPECT_TRUE((built->members == std::vector<Rank>{1, 2}));
    EXPECT_EQ(built->root, 1);
    EXPECT_EQ(built->self, 0);
    EXPECT_TRUE((receiver.output_shapes == std::vector<Shape>{{4, 2}}));
    EXPECT_EQ(built->buffers[0].output_bytes, int64_t{32});
  }
}

TEST(ReduceHasAnOutputOnTheRootOnly) {
  for (Rank root : {1, 2}) {
    Case c(CollectiveKind::kReduce, {{3}, {}}, {});
    c.run.plan.root = root;
    auto built = c.Build();
    ASSERT_TRUE(built.ok());
    for (const TensorBuffer& buffer : built->buffers) {
      EXPECT_EQ(buffer.output != nullptr, root == 1);
      EXPECT_TRUE(buffer.input != nullptr);
    }
  }
}

TEST(ThoseWhoHaveJoinedTakeNoPart) {
  Case c(CollectiveKind::kAllgather, {{2}}, {2, 3});
  c.run.plan.absent = {0};
  c.run.members = {1, 2};
  auto built = c.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE((built->members == std::vector<Rank>{1, 2}));
  EXPECT_EQ(built->self, 0);
  EXPECT_TRUE((c.output_shapes == std::vector<Shape>{{5}}));
}

TEST(ARankWithoutMemoryGetsScratch) {
  Case c(CollectiveKind::kReducescatter, {{3, 2}}, {});
  c.memory = false;
  auto built = c.Build();
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE(built->buffers[0].output != nullptr);
  EXPECT_CONTAINS(c.call.local_failure.message(), "full");
}

TEST(ACollectiveSaysWhichBuffersAreOfADevice) {
  Case host(CollectiveKind::kAllreduce, {{2}, {3}}, {});
  Case device(CollectiveKind::kAllreduce, {{4}, {5}}, {});
  const auto stream = std::make_shared<FakeStream>();
  device.call.call.stream = stream;
  device.call.call.early = true;
  device.call.call.keeps = std::make_shared<int>(1);
  host.run.plan.items.push_back({"y", 0, {}});
  host.run.plan.items.push_back({"z", 0, {}});
  for (DataPath path : {DataPath::kCpu, DataPath::kDevice}) {
    host.run.plan.path = path;
    auto built = BuildCollective(host.run, 1, {&host.call, &device.call, &host.call});
    ASSERT_TRUE(built.ok());
    EXPECT_TRUE(built->path == path);
    EXPECT_EQ(built->buffers.size(), 6u);
    ASSERT_EQ(built->device_calls.size(), 1u);
    EXPECT_TRUE(built->device_calls[0].stream == stream);
    EXPECT_EQ(built->device_calls[0].first, 2u);
    EXPECT_EQ(built->device_calls[0].count, 2u);
    EXPECT_TRUE(built->device_calls[0].early);
    EXPECT_TRUE(built->device_calls[0].keeps == device.call.call.keeps);
  }
  EXPECT_EQ(stream->marked, 0);  // whoever made the call has done that
}

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
