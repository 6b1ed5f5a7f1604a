#include "ops/runtime/membership/suspects.h"

#include <vector>

#include "tests/cc/test.h"

namespace tfring::membership::suspects_test {
namespace {

using Workers = std::vector<WorkerId>;

TEST(OfTwoTheYoungerGoes) {
  Suspects suspects;
  suspects.Accuse(1, 2);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
  suspects.Accuse(2, 1);  // who says it does not matter
  EXPECT_TRUE(suspects.EndOfGeneration({2, 3, 1}) == Workers{1});
}

TEST(WhoIsInMostPairsGoesAlone) {
  Suspects suspects;
  for (int i = 0; i < 2; ++i) {
    suspects.Accuse(1, 2);
    suspects.Accuse(3, 1);
    suspects.Accuse(1, 4);
    suspects.Accuse(4, 3);
    EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3, 4}) == (i == 0 ? Workers{} : Workers{1, 4}));
  }
}

TEST(WhatIsSaidOfOneThatHasStoppedByItsOwnWishDoesNotCount) {
  Suspects suspects;
  suspects.Accuse(2, 1);
  suspects.Accuse(1, 1);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
  suspects.Accuse(2, 1);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
  suspects.Accuse(2, 2);
  suspects.Accuse(1, 2);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
  suspects.Accuse(1, 2);  // its wish was of the generation before
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
  suspects.Accuse(1, 2);
  suspects.Accuse(3, 3);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}) == Workers{2});
}

}  // namespace
}  // namespace tfring::membership::suspects_test
