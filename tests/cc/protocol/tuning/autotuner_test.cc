#include "ops/runtime/protocol/tuning/autotuner.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::testing::autotuner_test {
namespace {

constexpr int64_t kMiB = 1 << 20;

Config Tuned() {
  Config config;
  config.autotune = true;
  config.autotune_steps_per_sample = 2;
  config.autotune_samples = 3;
  return config;
}

// A training whose step of 3 tensors takes as long as `step` says of the values.
class Training {
 public:
  using Step = std::function<Duration(const TunedValues&)>;
  explicit Training(const Config& config) : tuner(config) {}

  // Steps until the search is over; returns how many.
  int64_t Run(const Step& step, int64_t limit = 100000) {
    int64_t steps = 0;
    for (; tuner.active() && steps < limit; ++steps) {
      const Duration took = step(tuner.values());
      for (int tensor = 0; tensor < 3; ++tensor) {
        tuner.OnTensor(0, "t" + std::to_string(tensor), kMiB, now_);
        now_ += took / 3;
      }
      for (TuningRecord& record : tuner.TakeRecords()) records.push_back(record);
    }
    return steps;
  }

  Autotuner tuner;
  std::vector<TuningRecord> records;

 private:
  TimePoint now_ = kSecond;
};

int64_t Count(const std::vector<TuningRecord>& records, TuningRecord::Step step) {
  int64_t count = 0;
  for (const TuningRecord& record : records) count += record.step == step;
  return count;
}

TEST(NothingIsTunedUnlessAsked) {
  Autotuner tuner((Config()));
  EXPECT_TRUE(!tuner.active());
  EXPECT_EQ(tuner.values().fusion_threshold_bytes, 128 * kMiB);
  EXPECT_EQ(tuner.max_samples(), 0);
}

TEST(TheBestOfEachSettingIsFound) {
  Training training(Tuned());
  training.Run([](const TunedValues& values) -> Duration {
    Duration took = 9 * kMillisecond;
    if (values.fusion_threshold_bytes != 4 * kMiB) took += kMillisecond;
    if (values.max_plans_in_flight != 8) took += 2 * kMillisecond;
    if (values.piece_bytes != kMiB) took += 3 * kMillisecond;
    return took;
  });
  EXPECT_TRUE((training.tuner.values() == TunedValues{4 * kMiB, 8, kMiB}));
  EXPECT_EQ(Count(training.records, TuningRecord::Step::kTried), 11);
  EXPECT_EQ(Count(training.records, TuningRecord::Step::kCompared), 2);
  EXPECT_EQ(Count(training.records, TuningRecord::Step::kKept), 1);
  // 3 MiB in 9 ms.
  EXPECT_TRUE(training.records.back().bytes_per_second > 348e6);
  EXPECT_TRUE(training.records.back().bytes_per_second < 350e6);
}

TEST(WithoutADifferenceWhatWasGivenStays) {
  Training training(Tuned());
  const int64_t steps = training.Run([](const TunedValues&) { return 9 * kMillisecond; });
  EXPECT_TRUE((training.tuner.values() == TunedValues{128 * kMiB, 2, 256 << 10}));
  EXPECT_EQ(Count(training.records, TuningRecord::Step::kCompared), 0);
  // 3 samples before, and 3 for each of 1 + 4 + 3 + 3 trials, of 2 steps each; 10 changes.
  EXPECT_EQ(steps, 2 * (3 + 3 * 11) + 10 + 1);
}

TEST(LessThanTheMarginIsNoDifference) {
  Training training(Tuned());
  training.Run([](const TunedValues& values) -> Duration {
    return values.max_plans_in_flight == 4 ? 9'800'000 : 10'000'000;
  });
  EXPECT_EQ(training.tuner.values().max_plans_in_flight, 2);
}

TEST(WhatTheUserHasSetStays) {
  Config config = Tuned();
  config.fusion_threshold_bytes = 5 * kMiB;
  config.fixed = {"FUSION_THRESHOLD", "LOG_LEVEL"};
  Training training(config);
  training.Run([](const TunedValues& values) -> Duration {
    EXPECT_EQ(values.fusion_threshold_bytes, 5 * kMiB);
    return values.max_plans_in_flight * kMillisecond;
  });
  EXPECT_TRUE((training.tuner.values() == TunedValues{5 * kMiB, 1, 256 << 10}));
  config.fixed = {"FUSION_THRESHOLD", "MAX_PLANS_IN_FLIGHT", "PIECE_BYTES"};
  EXPECT_TRUE(!Autotuner(config).active());
}

TEST(DeterministicJobsKeepTheirPieces) {
  Config config = Tuned();
  config.deterministic = true;
  Training training(config);
  training.Run([](const TunedValues& values) -> Duration {
    EXPECT_EQ(values.piece_bytes, 256 << 10);
    return values.max_plans_in_flight * kMillisecond;
  });
  EXPECT_EQ(training.tuner.values().max_plans_in_flight, 1);
}

// The machine becomes twice as fast in the middle of the search: what was tried then looks better.
TEST(AFasterMachineDecidesNothing) {
  Training training(Tuned());
  int64_t steps = 0;
  training.Run([&](const TunedValues&) { return (++steps < 30 ? 20 : 10) * kMillisecond; });
  EXPECT_TRUE((training.tuner.values() == TunedValues{128 * kMiB, 2, 256 << 10}));
  EXPECT_EQ(Count(training.records, TuningRecord::Step::kCompared), 2);
}

TEST(OneSlowSampleOfATrialDecidesNothing) {
  Config config = Tuned();
  config.autotune_samples = 5;
  Training training(config);
  int64_t steps = 0;
  training.Run([&](const TunedValues& values) -> Duration {
    const bool slow = ++steps % 31 == 0;
    return (values.piece_bytes == kMiB ? 5 : 10) * (slow ? 40 : 1) * kMillisecond;
  });
  EXPECT_EQ(training.tuner.values().piece_bytes, kMiB);
}

TEST(WithNoiseAClearDifferenceIsFoundAndTheSearchEnds) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    Config config = Tuned();
    config.autotune_samples = 5;
    Training training(config);
    const int64_t steps = training.Run([&](const TunedValues& values) -> Duration {
      const Duration took = values.max_plans_in_flight == 1 ? 6'000'000 : 10'000'000;
      return took + static_cast<Duration>(random() % 2'000'000);
    });
    EXPECT_EQ(training.tuner.values().max_plans_in_flight, 1);
    EXPECT_TRUE(steps <= 3 * training.tuner.max_samples() + 1);
  }
}

// Nothing makes a difference, and single samples differ by up to a half.
TEST(NoiseAloneIsHardlyEverKept) {
  int kept = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    Config config = Tuned();
    config.autotune_samples = 5;
    Training training(config);
    training.Run([&](const TunedValues&) -> Duration {
      return 10'000'000 + static_cast<Duration>(random() % 10'000'000);
    });
    kept += !(training.tuner.values() == ValuesOf(config));
  }
  EXPECT_TRUE(kept <= 10);
}

TEST(NamesThatDoNotRepeatTakeBoundedMemoryAndEndNothing) {
  Training training(Tuned());
  for (size_t i = 0; i < 3 * Autotuner::kMaxNames; ++i) {
    training.tuner.OnTensor(0, "once" + std::to_string(i), 4, static_cast<TimePoint>(i));
  }
  EXPECT_TRUE(training.tuner.active());
  EXPECT_TRUE(training.tuner.TakeRecords().empty());
}

// Two sets have a tensor of the same name; time stands still; a tensor has no bytes.
TEST(OddSamplesDoNotCount) {
  Config config = Tuned();
  config.autotune_warmup_samples = 0;
  config.autotune_samples = 1;
  config.autotune_steps_per_sample = 1;
  Autotuner tuner(config);
  tuner.OnTensor(0, "x", 4, 10);
  tuner.OnTensor(1, "x", 4, 20);
  EXPECT_TRUE(tuner.TakeRecords().empty());
  tuner.OnTensor(0, "x", 4, 10);  // no time has passed
  EXPECT_TRUE(tuner.TakeRecords().empty());
  tuner.OnTensor(0, "x", 0, 30);
  EXPECT_EQ(tuner.TakeRecords().size(), size_t{1});
  tuner.OnTensor(0, "x", 0, 40);  // no bytes
  EXPECT_TRUE(tuner.TakeRecords().empty());
}

}  // namespace
}  // namespace tfring::testing::autotuner_test
