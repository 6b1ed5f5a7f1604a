#include "ops/runtime/protocol/tuning/autotuner.h"

#include <algorithm>

namespace tfring {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
// At the end there are so many pairs of samples for each sample of a trial.
constexpr int64_t kPairsPerSample = 2;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

bool operator==(const TunedValues& a, const TunedValues& b) {
  return a.fusion_threshold_bytes == b.fusion_threshold_bytes &&
         a.max_plans_in_flight == b.max_plans_in_flight && a.piece_bytes == b.piece_bytes;
}

TunedValues ValuesOf(const Config& config) {
  return {config.fusion_threshold_bytes, config.max_plans_in_flight, config.piece_bytes};
}

Autotuner::Autotuner(const Config& config)
    : steps_(std::max<int64_t>(config.autotune_steps_per_sample, 1)),
      samples_(std::max<int64_t>(config.autotune_samples, 1)),
      warmup_samples_(config.autotune_warmup_samples),
      given_(ValuesOf(config)),
      values_(given_),
      warmup_left_(warmup_samples_),
      best_(given_) {
  if (!config.autotune) return;
  const auto add = [&](const char* name, int64_t TunedValues::* member,
                       std::vector<int64_t> candidates) {
    if (std::count(config.fixed.begin(), config.fixed.end(), name) > 0) return;
    candidates.erase(std::remove(candidates.begin(), candidates.end(), given_.*member),
                     candidates.end());
    knobs_.push_back({member, std::move(candidates)});
  };
  add("FUSION_THRESHOLD", &TunedValues::fusion_threshold_bytes,
      {kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 128 * kMiB});
  add("MAX_PLANS_IN_FLIGHT", &TunedValues::max_plans_in_flight, {1, 2, 4, 8});
  // Adasum's bits depend on it.
  if (!config.deterministic) {
    add("PIECE_BYTES", &TunedValues::piece_bytes, {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB});
  }
  if (knobs_.empty()) return;
  phase_ = warmup_left_ > 0 ? Phase::kWarmup : Phase::kSearch;
}

int64_t Autotuner::max_samples() const {
  if (knobs_.empty()) return 0;
  int64_t trials = 1 + 2 * kPairsPerSample;  // of what was given, and two that take turns
  for (const Knob& knob : knobs_) trials += static_cast<int64_t>(knob.candidates.size());
  return warmup_samples_ + trials * samples_;
}

void Autotuner::StartSample(TimePoint now) {
  seen_.clear();
  began_ = now;
  bytes_ = 0;
}

void Autotuner::OnTensor(ProcessSetId set, const std::string& name, int64_t bytes, TimePoint now) {
  if (!active()) return;
  if (seen_.empty() || seen_.size() >= kMaxNames) StartSample(now);
  const auto found = seen_.find({set, name});
  if (found != seen_.end() && found->second == (settling_ ? 1 : steps_)) {
    const Duration took = now - began_;
    const double moved = static_cast<double>(bytes_) * static_cast<double>(kSecond);
    const TunedValues before = values_;
    StartSample(now);
    const bool counts = !std::exchange(settling_, false) && took > 0 && moved > 0;
    if (counts) OnSample(moved / static_cast<double>(took));
    settling_ = !(values_ == before);
    if (!active()) return seen_.clear();
  }
  ++seen_[{set, name}];
  bytes_ += bytes;
}

void Autotuner::OnSample(double bytes_per_second) {
  if (phase_ == Phase::kWarmup) {
    if (--warmup_left_ == 0) phase_ = Phase::kSearch;
    return;
  }
  if (phase_ == Phase::kCompare) return OnComparison(bytes_per_second);
  scores_.push_back(bytes_per_second);
  if (static_cast<int64_t>(scores_.size()) == samples_) OnTrial(Median(std::exchange(scores_, {})));
}

void Autotuner::OnTrial(double bytes_per_second) {
  records_.push_back({TuningRecord::Step::kTried, values_, bytes_per_second});
  if (bytes_per_second > best_score_ * (1 + kMargin)) {
    best_ = values_;
    best_score_ = bytes_per_second;
  }
  NextTrial();
}

void Autotuner::NextTrial() {
  while (knob_ < knobs_.size() && candidate_ == knobs_[knob_].candidates.size()) {
    ++knob_;
    candidate_ = 0;
  }
  values_ = best_;
  if (knob_ < knobs_.size()) {
    const Knob& knob = knobs_[knob_];
    values_.*knob.member = knob.candidates[candidate_++];
  } else if (best_ == given_) {
    Keep(given_, best_score_);
  } else {
    phase_ = Phase::kCompare;
  }
}

// A sample of the best values, two of those that were given, two of the best and so on: what slows
// every so many steps down would hit the same side each time if they changed after each sample.
void Autotuner::OnComparison(double bytes_per_second) {
  (values_ == best_ ? scores_ : given_scores_).push_back(bytes_per_second);
  const size_t samples = scores_.size() + given_scores_.size();
  values_ = samples % 4 == 0 || samples % 4 == 3 ? best_ : given_;
  if (static_cast<int64_t>(samples) < 2 * kPairsPerSample * samples_) return;
  size_t lost = 0;
  for (size_t pair = 0; pair < scores_.size(); ++pair) lost += scores_[pair] <= given_scores_[pair];
  const double best = Median(scores_);
  const double given = Median(given_scores_);
  records_.push_back({TuningRecord::Step::kCompared, best_, best});
  records_.push_back({TuningRecord::Step::kCompared, given_, given});
  if (best > given * (1 + kMargin) && lost <= scores_.size() / 10) {
    Keep(best_, best);
  } else {
    Keep(given_, given);
  }
}

void Autotuner::Keep(const TunedValues& values, double bytes_per_second) {
  values_ = values;
  phase_ = Phase::kDone;
  records_.push_back({TuningRecord::Step::kKept, values, bytes_per_second});
}

}  // namespace tfring
