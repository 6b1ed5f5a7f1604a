#include "ops/runtime/protocol/message/request_checks.h"

#include <cmath>
#include <string>

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::request_checks_test {
namespace {

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

TEST(CallsOfEveryKindAreChecked) {
  for (CollectiveKind kind : {CollectiveKind::kAlltoall, CollectiveKind::kScatter}) {
    EXPECT_TRUE(CheckRequest(Of(kind, {6}), {0, 1, 2}, 0).ok());
    EXPECT_TRUE(CheckRequest(Of(kind, {6}, {0, 5, 1}), {0, 1, 2}, 0).ok());
    ExpectRefused(Of(kind, {7}), "7 rows cannot be cut into 3 equal parts");
    ExpectRefused(Of(kind, {6}, {3, 3}), "2 splits for 3 ranks");
    ExpectRefused(Of(kind, {6}, {7, -1, 0}), "splits[1] is -1: a number of rows is 0 or more");
    ExpectRefused(Of(kind, {6}, {1, 2, 4}),
                  "splits add up to 7, but the tensor has 6 rows; pass splits with that sum "
                  "instead of [1, 2, 4]");
    ExpectRefused(Of(kind, {6}, {INT64_MAX, 6, 1}), "splits add up to");
    Request two = Of(kind, {6});
    two.shapes.push_back({6});
    ExpectRefused(two, "one tensor per call, not 2");
  }
  EXPECT_TRUE(CheckRequest(Of(CollectiveKind::kScatter, {7}), {0, 1, 2}, 1).ok());
  for (CollectiveKind kind : {CollectiveKind::kReducescatter, CollectiveKind::kAlltoall,
                              CollectiveKind::kGather, CollectiveKind::kScatter}) {
    ExpectRefused(Of(kind, {}), "reshape it to [1]");
  }
  ExpectRefused(Of(CollectiveKind::kAllreduce, {6}, {6}), "have no meaning here");
  for (CollectiveKind kind :
       {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    Request request = Of(kind, {6});
    request.root = 3;
    ExpectRefused(request, "root rank 3");
  }
  ExpectRefused(AddSet({}), "at least one rank");
  ExpectRefused(AddSet({1, 0}), "have to ascend");
  ExpectRefused(AddSet({1, 1}), "have to ascend");
  ExpectRefused(AddSet({0, 3}), "rank 3, but ranks go from 0 to 2");
  ExpectRefused(AddSet({-1}), "rank -1, but ranks go from 0 to 2");
  ExpectRefused(RemoveSet(0), "cannot be removed");
  Request add = AddSet({0});
  add.process_set = 1;
  ExpectRefused(add, "all ranks have to take part");
}

TEST(SendsAreChecked) {
  Request send = Send(0, 2, {-1, 4});
  EXPECT_TRUE(CheckRequest(send, {0, 1, 2}, 2).ok());
  ExpectRefused(send, "negative dimension");
  send.shapes.clear();
  EXPECT_TRUE(CheckRequest(send, {0, 1, 2}, 2).ok());
  ExpectRefused(send, "at least one tensor");
  ExpectRefused(send, "goes from rank 0 to rank 2, but rank 1 called it", 1);
  send.peer = 3;
  ExpectRefused(send, "rank 3 is not among the ranks of the process set");
  send.peer = 0;
  ExpectRefused(send, "cannot send to itself");
}

TEST(BuffersHaveToFitTheirShapes) {
  float data[8] = {};
  const auto check = [&](CollectiveKind kind, Rank root, TensorBuffer buffer, bool allocate) {
    Request request;
    request.kind = kind;
    request.root = root;
    request.peer = 1 - root;
    request.shapes = {{2, 2}};
    const std::vector<TensorBuffer> buffers = {buffer};
    const CallMemory memory{buffers, allocate};
    return CheckContent(request, {0, 1}, 0, &memory).ok();
  };
  const TensorBuffer both = {data, data, 16, 16}, in = {data, nullptr, 16, 0};
  const TensorBuffer short_in = {data, data, 12, 16}, none = {};
  EXPECT_TRUE(check(CollectiveKind::kReduce, 0, both, false));
  EXPECT_TRUE(!check(CollectiveKind::kReduce, 0, in, false));
  EXPECT_TRUE(check(CollectiveKind::kReduce, 1, in, false));
  EXPECT_TRUE(!check(CollectiveKind::kReduce, 1, short_in, false));
  EXPECT_TRUE(!check(CollectiveKind::kBroadcast, 1, in, false));
  for (CollectiveKind kind : {CollectiveKind::kAllgather, CollectiveKind::kReducescatter,
                              CollectiveKind::kAlltoall, CollectiveKind::kGather}) {
    EXPECT_TRUE(check(kind, 1, in, true));
    EXPECT_TRUE(!check(kind, 1, in, false));
    EXPECT_TRUE(!check(kind, 1, short_in, true));
    EXPECT_TRUE(!check(kind, 1, none, true));
  }
  EXPECT_TRUE(check(CollectiveKind::kScatter, 0, in, true));
  EXPECT_TRUE(!check(CollectiveKind::kScatter, 0, short_in, true));
  EXPECT_TRUE(check(CollectiveKind::kScatter, 1, none, true));
  EXPECT_TRUE(check(CollectiveKind::kSendRecv, 0, in, false));
  EXPECT_TRUE(!check(CollectiveKind::kSendRecv, 0, none, false));
  EXPECT_TRUE(check(CollectiveKind::kSendRecv, 1, none, true));
  EXPECT_TRUE(!check(CollectiveKind::kSendRecv, 1, none, false));
}

}  // namespace
}  // namespace tfring::testing::request_checks_test
