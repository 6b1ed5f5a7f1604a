// How a simulated process trains: a step is one collective for each bucket over all members.

#include <utility>

#include "ops/sim/membership/job.h"
#include "ops/sim/membership/process.h"

namespace tfring::sim {

using membership::Generation;
using membership::WorkerEvents;
using membership::WorkerId;

void Process::BeginStep() {
  const Generation generation = worker_.generation();
  if (training_.AtEnd()) {
    job_->checker()->OnTrainingOver(id_, training_.live());
    Halt(generation, false, true);
    return;
  }
  batch_ = training_.Fetch(static_cast<int>(worker_.record().members.size()));
  const Duration longest = job_->scenario().step_time;
  const int64_t step = training_.live().step;
  const WorkerId first = worker_.record().members.front().worker;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    Later(random_.Between(longest / 2, longest), [this, generation, step, bucket, first] {
      if (!worker_.Runs(generation)) return;
      Send(first, [from = id_, generation, step, bucket, batch = batch_](Process* to) {
        to->OnPart(from, generation, step, bucket, batch);
      });
    });
  }
}

// Rank 0 gathers the parts of all members, even before it trains.
void Process::OnPart(WorkerId from, Generation generation, int64_t step, int bucket,
                     const Batch& batch) {
  if (generation != worker_.generation() || !(worker_.Runs(generation) || sync_order_)) return;
  Part& part = parts_[{step, bucket}];
  if (part.members.empty()) part.batch = batch;
  if (!(part.batch == batch)) job_->checker()->OnDifferentBatches(from, batch, part.batch);
  part.members.insert(from);
  const auto& members = worker_.record().members;
  if (part.members.size() < members.size()) return;
  Result result;
  result.generation = generation;
  result.step = step;
  result.bucket = bucket;
  result.batch = batch;
  // The plan of the last bucket announces the change to all members, in the same step.
  bool last = true;
  for (int i = 0; i < kBuckets; ++i) {
    last = last && (i == bucket || parts_[{step, i}].members.size() == members.size());
  }
  result.change = announce_ && last;
  // Send to the last ranks first: if rank 0 ends in between, the next rank 0 is behind.
  for (size_t left = members.size(); left-- > 0;) {
    Send(members[left].worker, [result](Process* to) { to->OnResult(result); });
    if (left == members.size() / 2 && job_->OnHalfOfResults(id_)) return;
  }
  parts_.erase(parts_.begin(), parts_.lower_bound({step, 0}));
}

void Process::OnResult(const Result& result) {
  if (!worker_.Runs(result.generation) || result.step != training_.live().step) return;
  job_->checker()->OnApply(id_, worker_.generation(), result.generation);
  change_ = change_ || result.change;
  if (training_.Take(batch_, result.bucket, GradientOf(result.batch, result.bucket))) AfterStep();
}

void Process::AfterStep() {
  WorkerEvents events;
  events.step = training_.live().step;
  const bool committed = training_.MaybeCommit();
  const Generation generation = worker_.generation();
  if (committed) {
    events.committed = training_.committed().position;
    job_->checker()->OnCommit(id_, generation, worker_.record().members.size(),
                              training_.committed());
    if (random_.Percent(50)) {
      Later(random_.Between(0, 4000) * kMillisecond, [this, generation] { Publish(generation); });
    }
  }
  StepWorker(std::move(events));
  if (!alive_ || !worker_.Runs(generation)) return;
  if (committed && change_ && !training_.AtEnd()) {
    Halt(generation, true, false);
  } else {
    BeginStep();
  }
}

// A checkpoint of this generation has been written, after its writing time.
void Process::Publish(Generation generation) {
  if (generation == worker_.generation() && worker_.MayPublish(Clock())) {
    job_->checker()->OnPublish(id_, generation);
  }
}

}  // namespace tfring::sim
