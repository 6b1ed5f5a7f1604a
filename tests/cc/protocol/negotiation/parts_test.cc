#include <cmath>
#include <string>

#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/fusion_planner.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/stall_inspector.h"
#include "ops/runtime/protocol/negotiation/validation.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring {
namespace {

using testing::Allgather;
using testing::Allreduce;

const std::vector<Rank> kThree = {0, 1, 2};

void ExpectRefused(const Request& request, const std::string& part, Rank self = 0) {
  const Status status = CheckRequest(request, kThree, self);
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), part);
}

TEST(CheckRequestAcceptsWhatIsRight) {
  EXPECT_TRUE(CheckRequest(Allreduce("x"), kThree, 0).ok());
  EXPECT_TRUE(CheckRequest(Allreduce("x", {}), kThree, 0).ok());
  EXPECT_TRUE(CheckRequest(Allreduce("x", {0, 3}), kThree, 0).ok());
  EXPECT_TRUE(CheckRequest(Allgather("x", {0, 3}), kThree, 0).ok());
  Request barrier;
  barrier.name = "b";
  barrier.kind = CollectiveKind::kBarrier;
  EXPECT_TRUE(CheckRequest(barrier, kThree, 0).ok());
}

TEST(CheckRequestNamesWhatIsWrong) {
  ExpectRefused(Allreduce(""), "needs a name");
  ExpectRefused(Allreduce(std::string(5000, 'x')), "too long");
  ExpectRefused(Allreduce("x", {2, -1}), "[2, -1]");
  ExpectRefused(Allreduce("x", {INT64_MAX, 2}), "more bytes");
  ExpectRefused(Allgather("x", {}), "reshape it to [1]");
  Request request = Allreduce("x");
  request.dtype = DataType::kBool;
  ExpectRefused(request, "dtype bool cannot be reduced");
  request = Allreduce("x");
  request.dtype = static_cast<DataType>(99);
  ExpectRefused(request, "'x'");
  request = Allreduce("x");
  request.op = static_cast<ReduceOp>(99);
  ExpectRefused(request, "reduce op 99");
  request.op = ReduceOp::kAdasum;
  request.dtype = DataType::kInt32;
  ExpectRefused(request, "Adasum needs float16");
  request.dtype = DataType::kFloat32;
  EXPECT_TRUE(CheckRequest(request, kThree, 0).ok());
  request.kind = CollectiveKind::kReduce;
  ExpectRefused(request, "Adasum is available for allreduce");
  request = Allreduce("x");
  request.kind = static_cast<CollectiveKind>(99);
  ExpectRefused(request, "kind 99");
  request = Allreduce("x");
  request.postscale = NAN;
  ExpectRefused(request, "finite");
  request = Allreduce("x");
  request.shapes.clear();
  ExpectRefused(request, "at least one tensor");
  request.shapes.assign(70000, {});
  ExpectRefused(request, "split the list");
  request = Allreduce("x");
  request.kind = CollectiveKind::kBroadcast;
  request.root = 3;
  ExpectRefused(request, "root rank 3");
  request.kind = CollectiveKind::kBarrier;
  ExpectRefused(request, "takes no tensors");
}

TEST(TotalBytesAddsUp) {
  Request request = Allreduce("x", {2, 3});
  request.shapes.push_back({});
  request.shapes.push_back({0, 9});
  EXPECT_EQ(TotalBytes(request), 28);
  request.shapes.push_back({INT64_MAX / 4});
  EXPECT_EQ(TotalBytes(request), INT64_MAX);
}

TEST(ProcessSetsCheckAndFind) {
  ProcessSets sets(4);
  EXPECT_TRUE(sets.Add(7, {3, 1}).ok());
  EXPECT_EQ(sets.PositionOf(7, 1), 0);
  EXPECT_EQ(sets.PositionOf(7, 3), 1);
  EXPECT_EQ(sets.PositionOf(7, 2), -1);
  EXPECT_EQ(sets.PositionOf(8, 2), -1);
  EXPECT_EQ(sets.Find(kGlobalProcessSet)->size(), size_t{4});
  EXPECT_TRUE(sets.Find(8) == nullptr);
  EXPECT_CONTAINS(sets.Add(7, {0}).message(), "exists already");
  EXPECT_CONTAINS(sets.Add(8, {0, 4}).message(), "rank 4");
  EXPECT_CONTAINS(sets.Add(8, {2, 2}).message(), "rank 2 twice");
  EXPECT_CONTAINS(sets.Add(8, {}).message(), "no ranks");
  EXPECT_TRUE(sets.Find(8) == nullptr);
}

// What three ranks hear when rank 1 differs.
std::string Disagreement(Request base, const Request& other) {
  const Status status = ValidateAgreement(kThree, {&base, &other, &base});
  EXPECT_TRUE(status.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(status.message(), "tensor 'x'");
  EXPECT_CONTAINS(status.message(), "on ranks 0, 2");
  EXPECT_CONTAINS(status.message(), "on rank 1");
  return status.message();
}

TEST(ValidationNamesBothValues) {
  const Request base = Allreduce("x", {2, 3});
  Request other = base;
  other.dtype = DataType::kFloat16;
  EXPECT_CONTAINS(Disagreement(base, other), "float32 on ranks 0, 2; float16 on rank 1");
  other = base;
  other.kind = CollectiveKind::kBroadcast;
  EXPECT_CONTAINS(Disagreement(base, other), "broadcast on rank 1");
  other = base;
  other.op = ReduceOp::kMax;
  EXPECT_CONTAINS(Disagreement(base, other), "Sum on ranks 0, 2; Max on rank 1");
  other = base;
  other.prescale = 0.5;
  EXPECT_CONTAINS(Disagreement(base, other), "prescale factor: 1 on ranks 0, 2; 0.5 on rank 1");
  other = base;
  other.postscale = 0.25;
  EXPECT_CONTAINS(Disagreement(base, other), "postscale factor: 1 on ranks 0, 2; 0.25 on rank 1");
  other = base;
  other.shapes.push_back({1});
  EXPECT_CONTAINS(Disagreement(base, other), "number of tensors: 1 on ranks 0, 2; 2 on rank 1");
  other = base;
  other.shapes[0] = {3, 2};
  EXPECT_CONTAINS(Disagreement(base, other), "[2, 3] on ranks 0, 2; [3, 2] on rank 1");
  other = base;
  other.layout_hash = 0xabc;
  EXPECT_CONTAINS(Disagreement(base, other), "layout 0000000000000abc on rank 1");
  other = base;
  other.group = true;
  EXPECT_CONTAINS(Disagreement(base, other), "a grouped call on rank 1");
  Request broadcast = base;
  broadcast.kind = CollectiveKind::kBroadcast;
  other = broadcast;
  other.root = 2;
  EXPECT_CONTAINS(Disagreement(broadcast, other), "root 0 on ranks 0, 2; root 2 on rank 1");
}

TEST(ValidationOfAllgatherLooksPastTheFirstDimension) {
  const Request base = Allgather("x", {2, 3});
  Request other = Allgather("x", {7, 3});
  EXPECT_TRUE(ValidateAgreement(kThree, {&base, &other, &base}).ok());
  other.shapes[0] = {2, 4};
  EXPECT_CONTAINS(Disagreement(base, other), "[2, 3] on ranks 0, 2; [2, 4] on rank 1");
  other.shapes[0] = {2, 3, 1};
  Disagreement(base, other);
}

TEST(ValidationOfListsOfDifferentLengths) {
  Request base = Allreduce("x", {2});
  base.shapes = {{2}, {3}};
  Request other = base;
  other.shapes[1] = {4};
  Request shorter = Allreduce("x", {2});
  const Status status = ValidateAgreement(kThree, {&base, &other, &shorter});
  EXPECT_CONTAINS(status.message(), "number of tensors: 2 on ranks 0, 1; 1 on rank 2");
}

TEST(ValidationOfSendsWhoseReceiversTakeAnything) {
  Request send = Allreduce("x", {2});
  send.kind = CollectiveKind::kSendRecv;
  send.peer = 1;
  Request recv = send;
  recv.shapes[0] = {5};
  Request open = send;
  open.shapes.clear();
  EXPECT_TRUE(ValidateAgreement(kThree, {&send, &open, &send}).ok());
  EXPECT_CONTAINS(ValidateAgreement(kThree, {&send, &recv, &open}).message(),
                  "[2] on rank 0; [5] on rank 1; any shape on rank 2");
}

TEST(ValidationStaysShortOnManyRanks) {
  std::vector<Request> requests;
  std::vector<Rank> ranks;
  std::vector<const Request*> pointers;
  for (int i = 0; i < 1000; ++i) requests.push_back(Allreduce("x", {i}));
  for (int i = 0; i < 1000; ++i) {
    ranks.push_back(i);
    pointers.push_back(&requests[i]);
  }
  const std::string message = ValidateAgreement(ranks, pointers).message();
  EXPECT_CONTAINS(message, "[0] on rank 0; [1] on rank 1");
  EXPECT_CONTAINS(message, "others on 992 more ranks");
}

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
size_t Batches(const Config& config, const Request& a, const Request& b) {
  FusionPlanner planner(config);
  planner.Add(1, a);
  planner.Add(2, b);
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

TEST(ResponseCacheEvictsTheLeastRecentlyUsed) {
  ResponseCache cache(2);
  ResponseCache::Evicted evicted;
  EXPECT_EQ(cache.Insert(Allreduce("a"), {}, &evicted), 1u);
  EXPECT_EQ(cache.Insert(Allreduce("b"), {}, &evicted), 2u);
  EXPECT_TRUE(evicted.empty());
  cache.Touch(1);
  EXPECT_EQ(cache.Insert(Allreduce("c", {4}, 5), {}, &evicted), 3u);
  EXPECT_TRUE(evicted == (ResponseCache::Evicted{{0, 2u}}));
  EXPECT_TRUE(cache.Find(2) == nullptr);
  EXPECT_TRUE(cache.Issued(2));
  EXPECT_TRUE(!cache.Issued(4));
  EXPECT_TRUE(!cache.Issued(0));
  evicted.clear();
  EXPECT_EQ(cache.Insert(Allreduce("c", {9}, 5), {}, &evicted), 4u);  // instead of id 3
  EXPECT_TRUE(evicted == (ResponseCache::Evicted{{5, 3u}}));
  EXPECT_EQ(cache.size(), size_t{2});
  EXPECT_TRUE(cache.Find(1) != nullptr);
  EXPECT_EQ(ResponseCache(0).Insert(Allreduce("a"), {}, &evicted), 0u);
}

TEST(AgreementGivesEachMemberItsOwnRequest) {
  Agreement agreement{1, Allgather("g", {5, 2}), {5, 6, 7, 50, 60, 70}};
  agreement.request.shapes.push_back({50});
  EXPECT_TRUE(agreement.RequestOf(2).shapes == (std::vector<Shape>{{7, 2}, {70}}));
  EXPECT_TRUE(agreement.RequestOf(0).shapes == (std::vector<Shape>{{5, 2}, {50}}));
}

TEST(KnownIdsStandForEqualRequestsOnly) {
  KnownIds known;
  known.Learn(3, Allreduce("a"), {});
  EXPECT_EQ(known.IdFor(Allreduce("a")), 3u);
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 0u);
  EXPECT_EQ(known.IdFor(Allreduce("a", {4}, 1)), 0u);
  known.Learn(9, Allreduce("a", {5}), {});
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 9u);
  EXPECT_TRUE(known.Find(3) == nullptr);
  known.Forget(3);
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 9u);
  known.Forget(9);
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 0u);
  EXPECT_EQ(known.size(), size_t{0});
}

TEST(ReadinessCountsMembersOnce) {
  Readiness readiness;
  const auto ask = [&readiness](Rank rank) {
    RankRequest full;
    full.full = std::make_unique<Request>(Allreduce("x"));
    return readiness.Add(0, "x", kThree, rank, std::move(full), 7);
  };
  const Pending* pending = ask(2);
  EXPECT_TRUE(ask(2) == nullptr);
  EXPECT_TRUE(ask(0) == pending);
  EXPECT_TRUE(pending->asked == 2);
  EXPECT_TRUE(pending->AskedBy() == (std::vector<Rank>{0, 2}));
  EXPECT_TRUE(ask(1)->asked == 3);
  const uint64_t handle = pending->handle;
  readiness.Erase(handle);
  EXPECT_TRUE(readiness.Find(handle) == nullptr);
  EXPECT_EQ(ask(1)->asked, size_t{1});
}

TEST(StallInspectorWarnsOncePerInterval) {
  Config config;
  config.stall_warning = 10;
  config.stall_shutdown = 45;
  StallInspector stalls(config);
  EXPECT_EQ(stalls.next_deadline(), kNever);
  const auto first = stalls.Watch(1, 0);
  const auto second = stalls.Watch(2, 5);
  EXPECT_EQ(stalls.next_deadline(), 10);
  EXPECT_TRUE(stalls.TakeWarnings(9).empty());
  EXPECT_TRUE(stalls.TakeWarnings(10) == (std::vector<uint64_t>{1}));
  EXPECT_TRUE(stalls.TakeWarnings(10).empty());
  EXPECT_EQ(stalls.next_deadline(), 15);
  EXPECT_TRUE(stalls.TakeWarnings(16) == (std::vector<uint64_t>{2}));
  EXPECT_TRUE(stalls.TakeWarnings(26) == (std::vector<uint64_t>{1, 2}));
  EXPECT_TRUE(stalls.Expired(44) == nullptr);
  EXPECT_EQ(*stalls.Expired(45), uint64_t{1});
  stalls.Forget(first);
  EXPECT_TRUE(stalls.Expired(45) == nullptr);
  EXPECT_EQ(*stalls.Expired(50), uint64_t{2});
  stalls.Forget(second);
  EXPECT_EQ(stalls.next_deadline(), kNever);
}

TEST(StallInspectorCanBeOff) {
  Config config;
  config.stall_warning = 0;
  StallInspector stalls(config);
  stalls.Watch(1, 0);
  EXPECT_EQ(stalls.next_deadline(), kNever);
  EXPECT_TRUE(stalls.TakeWarnings(kNever - 1).empty());
  EXPECT_TRUE(stalls.Expired(kNever - 1) == nullptr);
}

}  // namespace
}  // namespace tfring

TFRING_TEST_MAIN()
