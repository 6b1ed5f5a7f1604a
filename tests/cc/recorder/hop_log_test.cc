#include "ops/runtime/recorder/hop_log.h"

#include <vector>

#include "tests/cc/test.h"

namespace tfring::hop_log_test {
namespace {

Hop OfPlan(uint64_t sequence) {
  Hop hop;
  hop.sequence = sequence;
  return hop;
}

TEST(NothingIsNotedUntilSomebodyTakes) {
  HopLog log;
  EXPECT_TRUE(log.sink() == nullptr);
  log.Add(OfPlan(1));
  EXPECT_EQ(log.Take(true).size(), 0u);
  EXPECT_TRUE(log.sink() != nullptr);
}

TEST(EachHopIsTakenOnce) {
  HopLog log;
  log.Take(true);
  log.sink()->Add(OfPlan(1));
  log.sink()->Add(OfPlan(2));
  const std::vector<Hop> taken = log.Take(true);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[1].sequence, 2u);
  EXPECT_EQ(log.Take(true).size(), 0u);
}

TEST(APlanThatRunsMayAddAfterTheEnd) {
  HopLog log;
  log.Take(true);
  HopSink* const sink = log.sink();
  sink->Add(OfPlan(1));
  EXPECT_EQ(log.Take(false).size(), 1u);
  EXPECT_TRUE(log.sink() == nullptr);
  sink->Add(OfPlan(1));
  EXPECT_EQ(log.Take(false).size(), 0u);
}

TEST(MemoryIsBounded) {
  HopLog log;
  log.Take(true);
  for (size_t i = 0; i < HopLog::kMost + 100; ++i) log.Add(OfPlan(i + 1));
  const std::vector<Hop> taken = log.Take(true);
  EXPECT_TRUE(taken.size() >= HopLog::kMost && taken.size() < HopLog::kMost + 100);
  EXPECT_EQ(taken.front().sequence, 1u);
}

}  // namespace
}  // namespace tfring::hop_log_test
