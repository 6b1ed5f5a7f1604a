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

// What one step adds to a bucket of weights: depends on the batch only, as an average would.
uint64_t GradientOf(const Batch& batch, int bucket);
uint64_t Updated(uint64_t weights, uint64_t gradient);

// What a worker has learned: weights are a hash of the batches they have seen.
struct TrainState {
  membership::Position position;  // of the last commit
  int64_t step = 0;
  int64_t pass = 0;      // cursor of the data: the next sample
  int64_t consumed = 0;  // in the pass
  std::array<uint64_t, kBuckets> weights{};
  std::vector<Batch> history;  // of the steps
};

// A replica of the training of one worker: `live` goes step by step, `committed` is what a restore
// gives. As in the real thing, weights are copied at a commit only if there are several steps
// between commits: otherwise the gate keeps them whole.
class Training {
 public:
  Training(const Scenario* scenario, JobSabotage sabotage)
      : scenario_(scenario), sabotage_(sabotage) {}

  bool AtEnd() const { return live_.pass >= scenario_->passes; }
  // Takes the next batch of a job of `members`.
  Batch Fetch(int members);
  // A bucket of the present step came. True if the step is complete and was applied.
  bool Take(const Batch& batch, int bucket, uint64_t gradient);
  // After a step: true if it ends with a commit, which is made.
  bool MaybeCommit();
  void Restore();
  void Adopt(const TrainState& state);

  const TrainState& live() const { return live_; }
  const TrainState& committed() const { return committed_; }

 private:
  const Scenario* const scenario_;
  const JobSabotage sabotage_;
  TrainState live_;
  TrainState committed_;
  std::array<bool, kBuckets> came_{};
  std::array<uint64_t, kBuckets> gradients_{};
};

std::string BatchText(const Batch& batch);  // "samples 0 to 31 of pass 0"

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_MEMBERSHIP_TRAINING_H_
