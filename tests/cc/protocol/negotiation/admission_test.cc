#include <string>

#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::admission_test {
namespace {

TEST(CallsThatNoRankCouldMatchEndHere) {
  const auto expect = [](Request request, const std::string& part) {
    const Status status = AdmitRequest(OverlappingSets(), 0, nullptr, &request);
    EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
    EXPECT_CONTAINS(status.message(), part);
    EXPECT_TRUE(request.refusal.empty());
  };
  expect(Allreduce("x", {4}, 9), "tensor 'x': there is no process set 9");
  expect(Allreduce("x", {4}, 2), "called on rank 0, but process set 2 has only the ranks 1, 2");
  expect(Allreduce(""), "needs a name");
}

TEST(OtherwiseWrongCallsBecomeRefusals) {
  Request request = Allreduce("x", {4}, 1);
  request.dtype = DataType::kBool;
  EXPECT_TRUE(AdmitRequest(OverlappingSets(), 0, nullptr, &request).ok());
  EXPECT_CONTAINS(request.refusal, "dtype bool cannot be reduced");
  EXPECT_TRUE(request.shapes.empty());
  const Request refusal = request;
  EXPECT_TRUE(AdmitRequest(OverlappingSets(), 0, nullptr, &request).ok());
  EXPECT_TRUE(request == refusal);
}

}  // namespace
}  // namespace tfring::testing::admission_test
