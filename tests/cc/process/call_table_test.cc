#include "ops/runtime/process/call_table.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::call_table_test {
namespace {

// The control thread may take a call of a plan that succeeded before the backend's thread does.
TEST(AFailureOfThisRankOutlivesThePlansSuccess) {
  for (bool by_plan : {false, true}) {
    CallTable table;
    Request request = Allreduce("x");
    LocalCall call;
    ASSERT_TRUE(table.Add(&request, &call).ok());
    std::vector<Submission> submissions;
    table.Drain(&submissions);
    const CallId id = submissions[0].id;
    table.Begin(1, {id})[0]->local_failure = Internal("no memory");
    const Status outcome =
        by_plan ? table.TakePlan(1)[0].status : table.Take(id, OkStatus())->status;
    EXPECT_EQ(outcome.message(), std::string("no memory"));
  }
}

}  // namespace
}  // namespace tfring::testing::call_table_test
