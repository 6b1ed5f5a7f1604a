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

CallId AddCall(CallTable* table, const std::string& name, bool early, std::shared_ptr<void> keeps) {
  Request request = Allreduce(name);
  LocalCall call;
  call.early = early;
  call.keeps = std::move(keeps);
  call.done = [](const Status&) {};
  EXPECT_TRUE(table->Add(&request, &call).ok());
  std::vector<Submission> submissions;
  table->Drain(&submissions);
  return submissions.at(0).id;
}

// The device may still use the memory of a call whose `done` has run.
TEST(MemoryIsKeptUntilThePlanHasEnded) {
  enum class End { kOk, kFailed, kNever };
  for (End end : {End::kOk, End::kFailed, End::kNever}) {
    CallTable table;
    const auto early_memory = std::make_shared<int>(1);
    const auto scratch = std::make_shared<int>(2);
    const auto late_memory = std::make_shared<int>(3);
    const CallId early = AddCall(&table, "early", true, early_memory);
    const CallId late = AddCall(&table, "late", false, late_memory);
    table.Begin(7, {early, late})[0]->scratch.push_back(scratch);
    {
      std::vector<FinishedCall> launched = table.TakeLaunched(7);
      ASSERT_EQ(launched.size(), 1u);
      EXPECT_TRUE(launched[0].call.done && launched[0].status.ok());
    }
    EXPECT_EQ(early_memory.use_count(), 2);
    EXPECT_EQ(scratch.use_count(), 2);
    // Its name is free, and a new call of it is none of the plan's.
    const auto next_memory = std::make_shared<int>(4);
    AddCall(&table, "early", true, next_memory);
    EXPECT_TRUE(table.TakeLaunched(7).empty());
    EXPECT_TRUE(!table.Take(early, OkStatus()).has_value());
    {
      std::vector<FinishedCall> left;
      if (end == End::kOk) left = table.TakePlan(7);
      if (end == End::kFailed) left = table.ForgetPlan(7);
      if (end == End::kNever) left = table.TakeAll(Internal("over"));
      size_t with_done = 0;
      for (const FinishedCall& call : left) with_done += call.call.done ? 1 : 0;
      EXPECT_EQ(with_done, end == End::kOk ? 1u : end == End::kFailed ? 0u : 2u);
      EXPECT_EQ(early_memory.use_count(), 2);  // to be released outside of the table's lock
    }
    EXPECT_EQ(early_memory.use_count(), 1);
    EXPECT_EQ(scratch.use_count(), 1);
    EXPECT_EQ(late_memory.use_count(), end == End::kFailed ? 2 : 1);
    EXPECT_EQ(next_memory.use_count(), end == End::kNever ? 1 : 2);
  }
}

}  // namespace
}  // namespace tfring::testing::call_table_test
