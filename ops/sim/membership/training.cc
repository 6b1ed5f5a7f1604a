#include "ops/sim/membership/training.h"

#include <algorithm>

#include "ops/sim/random.h"

namespace tfring::sim {

uint64_t GradientOf(const Batch& batch, int bucket) {
  return Random(static_cast<uint64_t>((batch.pass * 1000003 + batch.first) * 1000003 +
                                      batch.last * 2 + bucket))
      .Next();
}

uint64_t Updated(uint64_t weights, uint64_t gradient) { return Random(weights ^ gradient).Next(); }

Batch Training::Fetch(int members) {
  const int64_t size =
      scenario_->global_batch > 0 ? scenario_->global_batch : scenario_->rows * members;
  Batch batch;
  batch.pass = live_.pass;
  batch.first = live_.consumed;
  batch.last = std::min(batch.first + size, scenario_->samples);
  live_.consumed = batch.last;
  if (live_.consumed == scenario_->samples) {
    ++live_.pass;
    live_.consumed = 0;
  }
  came_ = {};
  return batch;
}

bool Training::Take(const Batch& batch, int bucket, uint64_t gradient) {
  if (came_[bucket]) return false;
  came_[bucket] = true;
  gradients_[bucket] = gradient;
  const bool whole = std::all_of(came_.begin(), came_.end(), [](bool came) { return came; });
  if (!whole) return false;
  for (int i = 0; i < kBuckets; ++i) live_.weights[i] = Updated(live_.weights[i], gradients_[i]);
  ++live_.step;
  live_.history.push_back(batch);
  return true;
}

bool Training::MaybeCommit() {
  if (live_.step % scenario_->steps_per_commit != 0 && !AtEnd()) return false;
  ++live_.position.commit;
  live_.position.step = live_.step;
  committed_ = live_;
  return true;
}

void Training::Restore() {
  TrainState restored = committed_;
  if (scenario_->steps_per_commit == 1) restored.weights = live_.weights;
  live_ = std::move(restored);
}

void Training::Adopt(const TrainState& state) {
  live_ = state;
  committed_ = state;
}

std::string BatchText(const Batch& batch) {
  return "samples " + std::to_string(batch.first) + " to " + std::to_string(batch.last - 1) +
         " of pass " + std::to_string(batch.pass);
}

}  // namespace tfring::sim
