#include "ops/runtime/base/check.h"

#include <string>

#include "tests/cc/death.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

TEST(ATrueConditionEvaluatesNoMessage) {
  int evaluated = 0;
  TFRING_CHECK(1 + 1 == 2) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(AFalseConditionPrintsAndAborts) {
  const std::string text = AbortMessage([] { TFRING_CHECK(1 + 1 == 3) << "plan " << 7; });
  EXPECT_CONTAINS(text, "check_test.cc");
  EXPECT_CONTAINS(text, "not true: 1 + 1 == 3: plan 7");
}

}  // namespace
}  // namespace tfring::testing
