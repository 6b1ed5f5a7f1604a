#include "ops/runtime/protocol/negotiation/stall_inspector.h"

#include "tests/cc/test.h"

namespace tfring::stall_inspector_test {
namespace {

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
  config.stall_warning = config.stall_shutdown = 0;
  StallInspector stalls(config);
  stalls.Watch(1, 0);
  EXPECT_EQ(stalls.next_deadline(), kNever);
  EXPECT_TRUE(stalls.TakeWarnings(kNever - 1).empty());
  EXPECT_TRUE(stalls.Expired(kNever - 1) == nullptr);
}

}  // namespace
}  // namespace tfring::stall_inspector_test
