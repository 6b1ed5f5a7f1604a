#include "ops/runtime/backend/algorithms/allreduce.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/backend/symbolic.h"
#include "tests/cc/test.h"

namespace tfring::testing::allreduce_test {
namespace {

using AllreduceBuilder = Schedule (*)(const ReduceShape&);

constexpr AllreduceBuilder kAllreduces[] = {RingAllreduce, DirectAllreduce, TwoPhaseAllreduce,
                                            TreeAllreduce};

std::vector<Schedule> AllreduceOfAll(AllreduceBuilder builder, int size, int64_t elements,
                                     int64_t element_bytes, int64_t piece_bytes) {
  std::vector<Schedule> schedules;
  for (int r = 0; r < size; ++r) {
    schedules.push_back(builder({r, size, elements, element_bytes, piece_bytes}));
  }
  return schedules;
}

std::vector<SymbolicRank> Contributions(int size, int64_t elements) {
  std::vector<SymbolicRank> ranks = Inputs(size, elements);
  for (SymbolicRank& rank : ranks) rank.output.resize(elements);
  return ranks;
}

TEST(EveryAllreduceSumsEveryElementOfEveryRankOnce) {
  for (AllreduceBuilder builder : kAllreduces) {
    for (int size = 2; size <= 9; ++size) {
      for (int64_t elements : {0, 1, 2, size - 1, size, size + 1, 1000, 4099}) {
        // Small pieces, so that there are many; they do not divide anything.
        for (uint32_t seed = 0; seed < (elements < 16 ? 30u : 4u); ++seed) {
          const std::vector<Schedule> schedules = AllreduceOfAll(builder, size, elements, 4, 1030);
          std::vector<SymbolicRank> ranks = Contributions(size, elements);
          const std::string wrong = PlaySymbolically(schedules, 4, seed % 2 == 1, seed, &ranks);
          const std::string what = std::string(schedules[0].algorithm) + ", " +
                                   std::to_string(size) + " ranks, " + std::to_string(elements) +
                                   " elements: ";
          ASSERT_EQ(what + wrong, what);
          bool all_right = true;
          for (const SymbolicRank& rank : ranks) {
            for (int64_t i = 0; i < elements; ++i) {
              all_right &= rank.output[i].ranks == (uint64_t{1} << size) - 1;
              all_right &= rank.output[i].finished == 1;
              all_right &= rank.output[i].tree == ranks[0].output[i].tree;
            }
          }
          ASSERT_EQ(what + (all_right ? "" : "a wrong result"), what);
        }
      }
    }
  }
}

TEST(TwoPhaseAllreduceReusesItsScratchOnlyWhenItIsFree) {
  const int64_t elements = 50001;  // five or more pieces per slice
  for (int size : {2, 3}) {
    for (uint32_t seed = 0; seed < 8; ++seed) {
      std::vector<SymbolicRank> ranks = Contributions(size, elements);
      const std::vector<Schedule> schedules =
          AllreduceOfAll(TwoPhaseAllreduce, size, elements, 4, 1);
      ASSERT_EQ(PlaySymbolically(schedules, 4, seed % 2 == 1, seed, &ranks), "");
      // The position is part of the tree: an element that came from another piece shows.
      std::vector<SymbolicRank> plain = Contributions(size, elements);
      const std::vector<Schedule> direct = AllreduceOfAll(DirectAllreduce, size, elements, 4, 1);
      ASSERT_EQ(PlaySymbolically(direct, 4, false, seed, &plain), "");
      for (int64_t i = 0; i < elements; ++i) {
        for (int r = 0; r < size; ++r) {
          ASSERT_EQ(ranks[r].output[i].tree, plain[0].output[i].tree);
        }
      }
    }
  }
}

TEST(TheRingSendsPiecesOnBeforeItHasSentTheWholeChunk) {
  for (int size : {2, 3, 5}) {
    const int64_t elements = 1000 * size;
    for (const Schedule& schedule : AllreduceOfAll(RingAllreduce, size, elements, 4, 400)) {
      int sent_on = 0;
      int first_sent_on = 0;
      int last_of_own = 0;
      for (const Step& step : schedule.steps) {
        if (step.kind != StepKind::kSend) continue;
        ++sent_on;
        if (step.src.space == Space::kInput) last_of_own = sent_on;
        if (step.src.space == Space::kOutput && first_sent_on == 0) first_sent_on = sent_on;
      }
      EXPECT_TRUE(first_sent_on > 1 && first_sent_on < last_of_own);
    }
  }
}

TEST(RingAndTwoPhaseAllreduceSendTwiceNMinusOneNthOfTheData) {
  for (AllreduceBuilder builder : {RingAllreduce, TwoPhaseAllreduce}) {
    for (int size = 2; size <= 8; ++size) {
      const int64_t elements = 840 * 3;  // a multiple of every size
      for (const Schedule& s : AllreduceOfAll(builder, size, elements, 4, 100)) {
        EXPECT_EQ(BytesSent(s) * size, 2 * (size - 1) * elements * 4);
      }
      int64_t total = 0;
      const int64_t odd = 1000003;
      for (const Schedule& s : AllreduceOfAll(builder, size, odd, 4, 100 << 10)) {
        total += BytesSent(s);
        // At most one element per chunk and round from the formula.
        EXPECT_TRUE(std::abs(BytesSent(s) * size - 2 * (size - 1) * odd * 4) <=
                    int64_t{4} * size * 2 * (size - 1));
      }
      EXPECT_EQ(total, 2 * (size - 1) * odd * 4);
    }
  }
}

TEST(AllreduceTimesFollowTheTextbook) {
  const sim::LinkModel model = TextbookLinks();
  for (int size : {2, 4, 8}) {
    const int64_t bytes = 64 << 20;
    const double floor = 2.0 * (size - 1) / size * static_cast<double>(bytes);
    for (AllreduceBuilder builder : {RingAllreduce, TwoPhaseAllreduce}) {
      for (Duration end :
           sim::PriceSchedules(AllreduceOfAll(builder, size, bytes / 4, 4, 512 << 10), model)) {
        EXPECT_TRUE(static_cast<double>(end) >= floor);
        EXPECT_TRUE(static_cast<double>(end) <= 1.2 * floor);
      }
    }
    // One hop against 2 (N-1): the latency alone.
    EXPECT_EQ(sim::PriceSchedules(AllreduceOfAll(DirectAllreduce, size, 0, 4, 4), model)[0], 0);
    const Duration direct =
        sim::PriceSchedules(AllreduceOfAll(DirectAllreduce, size, size, 1, 4), model)[0];
    const Duration ring =
        sim::PriceSchedules(AllreduceOfAll(RingAllreduce, size, size, 1, 4), model)[0];
    EXPECT_TRUE(direct >= 1000 && direct < 1000 + 10 * size * size);
    EXPECT_TRUE(ring >= 2 * (size - 1) * 1000);
  }
  // A rank that waits for a message which is never sent does not end.
  std::vector<Schedule> lonely = AllreduceOfAll(RingAllreduce, 2, 100, 4, 64);
  lonely[1].steps.clear();
  EXPECT_EQ(sim::PriceSchedules(lonely, model)[0], kNever);
}

}  // namespace
}  // namespace tfring::testing::allreduce_test
