#include "ops/runtime/protocol/negotiation/validation.h"

#include <string>

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::validation_test {
namespace {

const std::vector<Rank> kThree = {0, 1, 2};

// The error of three ranks if rank 1 differs.
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

std::string GradientsDiffer(const std::string& layout, const std::string& of_rank_1) {
  Request base = Allreduce("x");
  base.layout_hash = 1;
  Request other = Allreduce("x", {7});  // whatever else follows from it
  other.dtype = DataType::kInt64;
  other.layout_hash = 2;
  const Layouts layouts = {{1, layout}, {2, of_rank_1}};
  return ValidateAgreement(kThree, {&base, &other, &base}, layouts).message();
}

TEST(ValidationNamesTheFirstGradientThatDiffers) {
  EXPECT_CONTAINS(GradientsDiffer("Da\t(x)\nDb\t(y)", "Dc\t(x)\nNd\t(y)"),
                  "gradients: 'b' (y) has a dense gradient on ranks 0, 2; 'd' (y) has no gradient "
                  "on rank 1. Compute this part of the model on every rank");
  EXPECT_CONTAINS(GradientsDiffer("Da\t(x)", "Sa\t(x)"), "sparse_as_dense=True");
  EXPECT_CONTAINS(GradientsDiffer("Da\t(x)", "Da\t(y)"), "'a' (y) has a dense gradient on rank 1");
  // A name counts where a variable is missing.
  EXPECT_CONTAINS(GradientsDiffer("Da\t(x)\nDb\t(x)\nDc\t(x)", "Da\t(x)\nDc\t(x)"),
                  "'b' (x) has a dense gradient on ranks 0, 2; 'c' (x)");
  EXPECT_CONTAINS(GradientsDiffer("Da\t(x)\nNb\t(x)", "Da\t(x)"),
                  "'b' (x) has no gradient on ranks 0, 2; no variable 2 on rank 1. Build the same");
  // Equal gradients, and lines that no rank writes: the other checks say more.
  EXPECT_CONTAINS(GradientsDiffer("Da\t(x)", "De\t(x)"), "the dtype");
  EXPECT_CONTAINS(GradientsDiffer("\n\t\nD", ""), "the dtype");
}

TEST(UnnamedCallsHaveToStandOnOneLineWhereDataWouldBeMixed) {
  Request base = Allreduce("x");
  base.call_site = "train.py:40";
  Request other = base;
  other.call_site = "train.py:57";
  EXPECT_TRUE(ValidateAgreement(kThree, {&base, &other, &base}).ok());  // a name says enough
  base.unnamed = other.unnamed = true;
  other.dtype = DataType::kFloat64;  // follows from it
  const std::string text = Disagreement(base, other);
  EXPECT_CONTAINS(text, "train.py:40 on ranks 0, 2; train.py:57 on rank 1");
  EXPECT_CONTAINS(text, "name='...'");
  EXPECT_CONTAINS(text, "TFRING_CALL_SITE_CHECK=0");
  other.dtype = base.dtype;
  for (int i = 0; i < kNumCollectiveKinds; ++i) {
    base.kind = other.kind = static_cast<CollectiveKind>(i);
    const bool mixes =
        base.kind == CollectiveKind::kAllreduce || base.kind == CollectiveKind::kAllgather ||
        base.kind == CollectiveKind::kReducescatter || base.kind == CollectiveKind::kAlltoall;
    EXPECT_EQ(CallSiteCounts(base), mixes);
  }
  base.kind = other.kind = CollectiveKind::kAllreduce;
  other.call_site.clear();  // not known: nothing to compare
  EXPECT_TRUE(ValidateAgreement(kThree, {&base, &other, &base}).ok());
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
  const Request send = Send(0, 1, {2});
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

}  // namespace
}  // namespace tfring::testing::validation_test
