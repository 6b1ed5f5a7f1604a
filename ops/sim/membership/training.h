#ifndef TFRING_OPS_SIM_MEMBERSHIP_TRAINING_H_
#define TFRING_OPS_SIM_MEMBERSHIP_TRAINING_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/membership/messages.h"
#include "ops/sim/membership/options.h"

namespace tfring::sim {

inline constexpr int kBuckets = 2;

// The samples [first, last) of a pass over the data.
struct Batch {
  int64_t pass = 0;
  int64_t first = 0;
  int64_t last = 0;
  friend bool operator==(const Batch& a, const Batch& b) {
    return a.pass == b.pass && a.first == b.first && a.last == b.last;
  }
};

// A step's addition to a bucket of weights. Depends only on the batch, as an average would.
uint64_t GradientOf(const Batch& batch, int bucket);
uint64_t Updated(uint64_t weights, uint64_t gradient);

// The training state of a worker. Weights are a hash of the batches that the worker has seen.
struct TrainState {
  membership::Position position;  // of the last commit
  int64_t step = 0;
  int64_t pass = 0;      // data cursor: position of the next sample
  int64_t consumed = 0;  // samples consumed in the pass
  std::array<uint64_t, kBuckets> weights{};
  std::vector<Batch> history;  // batches of all steps
};

// The training replica of one worker. `live` advances with each step; a restore gives `committed`.
// As in a real job, a commit copies the weights only if there are several steps between commits.
// Otherwise the gate keeps them whole.
class Training {
 public:
  explicit Training(const Scenario* scenario) : scenario_(scenario) {}

  bool AtEnd() const { return live_.pass >= scenario_->passes; }
  // Takes the next batch of a job with `members` members.
  Batch Fetch(int members);
  // Takes a bucket of the present step. True if the step is complete and was applied.
  bool Take(const Batch& batch, int bucket, uint64_t gradient);
  // Call this after a step. Makes a commit if one is due; returns whether it did.
  bool MaybeCommit();
  void Restore();
  void Adopt(const TrainState& state);

  const TrainState& live() const { return live_; }
  const TrainState& committed() const { return committed_; }

 private:
  const Scenario* const scenario_;
  TrainState live_;
  TrainState committed_;
  std::array<bool, kBuckets> came_{};
  std::array<uint64_t, kBuckets> gradients_{};
};

std::string BatchText(const Batch& batch);  // "samples 0 to 31 of pass 0"

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_MEMBERSHIP_TRAINING_H_
