#include "ops/runtime/protocol/negotiation/response_cache.h"

#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing::response_cache_test {
namespace {

TEST(ResponseCacheEvictsTheLeastRecentlyUsed) {
  ResponseCache cache(2);
  EXPECT_EQ(cache.Insert({0, Allreduce("a"), {}, {}}), 1u);
  EXPECT_EQ(cache.Insert({0, Allreduce("b"), {}, {}}), 2u);
  EXPECT_TRUE(!cache.has_evicted());
  cache.Touch(1);
  EXPECT_EQ(cache.Insert({0, Allreduce("c", {4}, 5), {}, {}}), 3u);
  EXPECT_TRUE(cache.TakeEvicted(0) == std::vector<uint32_t>{2u});
  EXPECT_TRUE(cache.Find(2) == nullptr);
  EXPECT_TRUE(cache.Issued(2));
  EXPECT_TRUE(!cache.Issued(4));
  EXPECT_TRUE(!cache.Issued(0));
  EXPECT_EQ(cache.Insert({0, Allreduce("c", {9}, 5), {}, {}}), 4u);  // instead of id 3
  EXPECT_TRUE(cache.TakeEvicted(5) == std::vector<uint32_t>{3u} && !cache.has_evicted());
  EXPECT_EQ(cache.size(), size_t{2});
  EXPECT_TRUE(cache.Find(1) != nullptr);
  EXPECT_EQ(ResponseCache(0).Insert({0, Allreduce("a"), {}, {}}), 0u);
}

TEST(AgreementGivesEachMemberItsOwnRequest) {
  Agreement agreement{1, Allgather("g", {5, 2}), {5, 6, 7, 50, 60, 70}, {}};
  agreement.request.shapes.push_back({50});
  EXPECT_TRUE(agreement.RequestOf(2).shapes == (std::vector<Shape>{{7, 2}, {70}}));
  EXPECT_TRUE(agreement.RequestOf(0).shapes == (std::vector<Shape>{{5, 2}, {50}}));
  agreement.request.call_site = "a.py:1";
  EXPECT_EQ(agreement.RequestOf(2).call_site, "a.py:1");
  agreement.call_sites = {"a.py:1", "a.py:1", "b.py:2"};
  EXPECT_EQ(agreement.RequestOf(2).call_site, "b.py:2");
}

TEST(KnownIdsStandForEqualRequestsOnly) {
  KnownIds known;
  known.Learn(3, Allreduce("a"), {});
  EXPECT_EQ(known.IdFor(Allreduce("a")), 3u);
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 0u);
  EXPECT_EQ(known.IdFor(Allreduce("a", {4}, 1)), 0u);
  Request elsewhere = Allreduce("a");
  elsewhere.call_site = "train.py:7";
  EXPECT_EQ(known.IdFor(elsewhere), 0u);
  known.Learn(9, Allreduce("a", {5}), {});
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 9u);
  EXPECT_TRUE(known.Find(3) == nullptr);
  known.Forget(3);
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 9u);
  known.Forget(9);
  EXPECT_EQ(known.IdFor(Allreduce("a", {5})), 0u);
  EXPECT_EQ(known.size(), size_t{0});
}

}  // namespace
}  // namespace tfring::testing::response_cache_test
