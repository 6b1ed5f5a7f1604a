#include "ops/runtime/membership/suspects.h"

#include <vector>

#include "tests/cc/test.h"

namespace tfring::membership::suspects_test {
namespace {

using Workers = std::vector<WorkerId>;

TEST(OneGenerationIsNotEnough) {
  Suspects suspects;
  suspects.Accuse(1, 2);
  suspects.Accuse(2, 1);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
}

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

TEST(AStepShowsThatMembersReachEachOther) {
  Suspects suspects;
  suspects.Accuse(1, 2);
  (void)suspects.EndOfGeneration({1, 2});
  suspects.Clear();
  suspects.Accuse(1, 2);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2}).empty());
}

TEST(OnlyGenerationsInARowCount) {
  Suspects suspects;
  suspects.Accuse(1, 2);
  (void)suspects.EndOfGeneration({1, 2, 3});
  suspects.Accuse(1, 3);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
  suspects.Accuse(1, 2);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 2, 3}).empty());
}

TEST(WhoIsLostIsNotJudged) {
  Suspects suspects;
  suspects.Accuse(1, 2);
  (void)suspects.EndOfGeneration({1, 2, 3});
  suspects.Accuse(1, 2);
  EXPECT_TRUE(suspects.EndOfGeneration({1, 3}).empty());
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

TEST(NobodyAccusesNobodyOrItself) {
  Suspects suspects;
  for (int i = 0; i < 2; ++i) {
    suspects.Accuse(1, kNobody);
    suspects.Accuse(2, 2);
    EXPECT_TRUE(suspects.EndOfGeneration({1, 2}).empty());
  }
}

}  // namespace
}  // namespace tfring::membership::suspects_test
