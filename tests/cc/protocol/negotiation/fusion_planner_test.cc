#include "ops/runtime/protocol/negotiation/fusion_planner.h"

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::fusion_planner_test {
namespace {

TEST(FusionTakesLikeRequestsUpToTheThreshold) {
  Config config;
  config.fusion_threshold_bytes = 48;
  FusionPlanner planner(config);
  Request half = Allreduce("h");
  half.dtype = DataType::kFloat16;
  planner.Add(1, Allreduce("a"));  // 16 bytes each
  planner.Add(2, half);            // another dtype
  planner.Add(3, Allreduce("b"));  // past it, into the first batch
  planner.Add(4, Allreduce("c"));
  planner.Add(5, Allreduce("d"));        // does not fit any more
  planner.Add(6, Allreduce("e", {99}));  // larger than the threshold: alone
  planner.Add(7, half);
  planner.Add(8, Allreduce("f"));
  EXPECT_TRUE(planner.Take() == (std::vector<uint64_t>{1, 3, 4}));
  EXPECT_TRUE(planner.Take() == (std::vector<uint64_t>{2, 7}));
  EXPECT_TRUE(planner.Take() == (std::vector<uint64_t>{5, 8}));
  planner.Add(9, Allreduce("g"));  // the batch that it would have joined has left
  EXPECT_TRUE(planner.Take() == (std::vector<uint64_t>{6}));
  EXPECT_TRUE(planner.Take() == (std::vector<uint64_t>{9}));
  EXPECT_TRUE(planner.empty());
  EXPECT_TRUE(planner.Take().empty());
}

// How many batches two requests make.
size_t Batches(const Config& config, const Request& a, const Request& b,
               DataPath path = DataPath::kCpu) {
  FusionPlanner planner(config);
  planner.Add(1, a, {}, path);
  planner.Add(2, b, {}, path);
  size_t batches = 0;
  for (; !planner.empty(); ++batches) planner.Take();
  return batches;
}

TEST(FusionSeparatesWhatDiffers) {
  Config config;
  const Request base = Allreduce("a");
  EXPECT_EQ(Batches(config, base, base), size_t{1});
  Request other = base;
  other.op = ReduceOp::kMin;
  EXPECT_EQ(Batches(config, base, other), size_t{2});
  other = base;
  other.prescale = 2;
  EXPECT_EQ(Batches(config, base, other), size_t{2});
  other = base;
  other.postscale = 2;
  EXPECT_EQ(Batches(config, base, other), size_t{2});
  other = base;
  other.process_set = 1;
  EXPECT_EQ(Batches(config, base, other), size_t{2});
  Request broadcast = base;
  broadcast.kind = CollectiveKind::kBroadcast;
  EXPECT_EQ(Batches(config, base, broadcast), size_t{2});
  EXPECT_EQ(Batches(config, broadcast, broadcast), size_t{1});
  other = broadcast;
  other.root = 1;
  EXPECT_EQ(Batches(config, broadcast, other), size_t{2});
  const Request allgather = Allgather("g", {1});
  EXPECT_EQ(Batches(config, allgather, allgather), size_t{2});
  Request group = base;
  group.group = true;
  EXPECT_EQ(Batches(config, base, group), size_t{1});
  config.disable_group_fusion = true;
  EXPECT_EQ(Batches(config, base, group), size_t{2});
  EXPECT_EQ(Batches(config, base, base), size_t{1});
  config.fusion_threshold_bytes = 0;
  EXPECT_EQ(Batches(config, base, base), size_t{2});
}

// Where NCCL's sum of an element begins depends on the element's place in the call.
TEST(DeterministicSumsOnDevicesTravelAlone) {
  Config config;
  const Request sum = Allreduce("a");
  Request broadcast = sum;
  broadcast.kind = CollectiveKind::kBroadcast;
  EXPECT_EQ(Batches(config, sum, sum, DataPath::kDevice), size_t{1});
  config.deterministic = true;
  EXPECT_EQ(Batches(config, sum, sum, DataPath::kDevice), size_t{2});
  EXPECT_EQ(Batches(config, sum, sum), size_t{1});
  EXPECT_EQ(Batches(config, broadcast, broadcast, DataPath::kDevice), size_t{1});
}

}  // namespace
}  // namespace tfring::testing::fusion_planner_test
