// Collectives of ranks that are not connected with each other before.
#include <algorithm>
#include <random>
#include <vector>

#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/strangers.h"

namespace tfring::testing::cpu_backend_connecting_test {
namespace {

constexpr int kRanks = 9;

// The members of a plan, and its data by member.
struct RandomPlan {
  std::vector<Rank> members;
  std::vector<std::vector<float>> data;
};

RandomPlan Draw(std::mt19937* random) {
  RandomPlan plan;
  while (plan.members.size() < 2) {
    plan.members.clear();
    for (Rank r = 0; r < kRanks; ++r) {
      if ((*random)() % 3 == 0) plan.members.push_back(r);
    }
  }
  const size_t elements = (*random)() % 4 == 0 ? 30000 : 3;
  for (Rank r : plan.members) plan.data.emplace_back(elements, static_cast<float>(1 << r));
  return plan;
}

// Process sets of any shape, whose plans all ranks have in one order, and begin at any time.
TEST(RandomProcessSetsConnectAsTheyGo) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    std::vector<RandomPlan> plans(25);
    std::generate(plans.begin(), plans.end(), [&random] { return Draw(&random); });
    Strangers strangers(kRanks);
    World world(std::vector<Config>(kRanks, SmallConfig()), std::move(strangers.ranks), false);
    for (size_t p = 0; p < plans.size(); ++p) {
      RandomPlan& plan = plans[p];
      const int size = static_cast<int>(plan.members.size());
      for (int m = 0; m < size; ++m) {
        Collective sum = Sum(&plan.data[m], m, size, p);
        sum.members = plan.members;
        world.backend(plan.members[m]).Submit(std::move(sum));
      }
    }
    for (size_t p = 0; p < plans.size(); ++p) {
      float expected = 0;
      for (Rank r : plans[p].members) expected += static_cast<float>(1 << r);
      for (Rank r : plans[p].members) ASSERT_TRUE(world.Wait(r, p).status.ok());
      for (const std::vector<float>& sum : plans[p].data) {
        EXPECT_EQ(sum.front(), expected);
        EXPECT_EQ(sum.back(), expected);
      }
    }
  }
}

}  // namespace
}  // namespace tfring::testing::cpu_backend_connecting_test
