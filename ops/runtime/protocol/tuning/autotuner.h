#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TUNING_AUTOTUNER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TUNING_AUTOTUNER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// The settings that are tuned.
struct TunedValues {
  int64_t fusion_threshold_bytes = 0;
  int64_t max_plans_in_flight = 0;
  int64_t piece_bytes = 0;
};
bool operator==(const TunedValues& a, const TunedValues& b);
TunedValues ValuesOf(const Config& config);

// The end of a trial: kTried while it searches, kCompared at the end, where the best values and the
// first ones take turns; kKept once: these values stay.
struct TuningRecord {
  enum class Step { kTried, kCompared, kKept };
  Step step = Step::kTried;
  TunedValues values;
  double bytes_per_second = 0;  // the median of the samples
};

// Searches on rank 0 for the values with which the most bytes per second become ready to run
// (docs/adr/0049-autotuning.md). A sample ends when a tensor comes for the (steps + 1)th time, so
// it covers so many steps of the training, whatever else is in them. After a change of the values
// one step is left out, in which both count. A trial is some samples with the same values; their
// median counts. Search: first the values that were given; then, for one setting after another,
// each of its candidates, with the best values so far of the others. A candidate has to be better
// by kMargin. If the best differs from what was given, the two take turns, and the best has to win
// again by kMargin, and in nine of ten pairs of samples: neither noise nor a machine that became
// faster or slower meanwhile decides. Ends after a number of samples that is known before. Constant
// work per tensor, limited memory. Pure; part of the Sequencer.
class Autotuner {
 public:
  static constexpr double kMargin = 0.03;
  static constexpr size_t kMaxNames = 1 << 16;  // a sample with more is given up

  // Inactive unless config.autotune. Values in config.fixed stay.
  explicit Autotuner(const Config& config);

  bool active() const { return phase_ != Phase::kDone; }

  // The values for plans from here on.
  const TunedValues& values() const { return values_; }

  // A tensor of so many bytes is ready on all ranks.
  void OnTensor(ProcessSetId set, const std::string& name, int64_t bytes, TimePoint now);

  // What has ended since the last time; forgets it.
  std::vector<TuningRecord> TakeRecords() { return std::exchange(records_, {}); }

  // How many samples the search takes at most.
  int64_t max_samples() const;

 private:
  enum class Phase { kWarmup, kSearch, kCompare, kDone };
  struct Knob {
    int64_t TunedValues::* member;
    std::vector<int64_t> candidates;  // besides the value that was given
  };

  void StartSample(TimePoint now);
  void OnSample(double bytes_per_second);
  void OnTrial(double bytes_per_second);
  void OnComparison(double bytes_per_second);
  void NextTrial();
  void Keep(const TunedValues& values, double bytes_per_second);

  const int64_t steps_;
  const int64_t samples_;
  const int64_t warmup_samples_;
  Phase phase_ = Phase::kDone;
  std::vector<Knob> knobs_;
  const TunedValues given_;
  TunedValues values_;

  // The present sample.
  std::map<std::pair<ProcessSetId, std::string>, int64_t> seen_;  // how often
  TimePoint began_ = 0;
  int64_t bytes_ = 0;
  bool settling_ = false;  // it is no sample but the step after a change

  int64_t warmup_left_ = 0;
  std::vector<double> scores_;        // of the present trial
  std::vector<double> given_scores_;  // kCompare: of the values that were given
  TunedValues best_;
  double best_score_ = 0;
  size_t knob_ = 0;       // whose candidates are tried
  size_t candidate_ = 0;  // the next one
  std::vector<TuningRecord> records_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TUNING_AUTOTUNER_H_
