#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CANONICAL_SUM_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CANONICAL_SUM_H_

#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What one member contributes to a sum, its input or a sum of several, in the memory of this rank
// and valid once the step `ready` has ended. This rank's own contribution, one at most, is in its
// input or output, where it is not overwritten; the others are in scratch.
struct Contribution {
  Range range;
  int ready = kNoStep;
  int members = 1;  // whose inputs it is the sum of
};

// Who contributes to a sum, by position, and how many members' inputs are in the contribution.
struct Source {
  int peer = 0;
  int members = 1;
};

// Adds the steps that reduce the contributions (by position, two or more) into `dst`. Floating
// point sums depend on the order of summation, so that algorithms give the same bits only if they
// share one: neighbours are added first, the lower position on the left, and an odd one out moves
// up a level: ((0 1) (2 3)) 4. DirectAllreduce, TreeAllreduce, TwoPhaseAllreduce and their like for
// other collectives use this canonical order. Contributions in scratch are overwritten. The last
// step finishes the result, unless `finish` is false, and is returned; it also waits for the step
// `before_output`.
int AppendCanonicalSum(ScheduleBuilder* builder, std::vector<Contribution> contributions, Range dst,
                       int before_output, bool finish = true);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CANONICAL_SUM_H_
