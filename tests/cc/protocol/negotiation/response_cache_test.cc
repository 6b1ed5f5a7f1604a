#include "ops/runtime/protocol/negotiation/response_cache.h"

#include <string>

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::response_cache_test {
namespace {

TEST(NamesThatComeOnceLeaveRoomForThoseThatComeAgain) {
  ResponseCache cache(4);
  for (int i = 0; i < 1000; ++i) cache.Insert({0, Allreduce("loss_" + std::to_string(i)), {}, {}});
  EXPECT_EQ(cache.Insert({0, Allreduce("grad"), {}, {}}), 0u);
  const uint32_t id = cache.Insert({0, Allreduce("grad"), {}, {}});
  EXPECT_EQ(id, 3u);
  EXPECT_EQ(cache.Insert({0, Allreduce("grad", {9}), {}, {}}), 4u);  // in place of id 3
  EXPECT_TRUE(cache.Find(id) == nullptr && cache.Find(4) != nullptr);
  EXPECT_EQ(ResponseCache(0).Insert({0, Allreduce("grad"), {}, {}}), 0u);
}

}  // namespace
}  // namespace tfring::testing::response_cache_test
