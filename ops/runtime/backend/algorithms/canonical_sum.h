#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CANONICAL_SUM_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CANONICAL_SUM_H_

#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// One rank's contribution, somewhere on this rank, valid once the step `ready` has ended. The
// space is kInput for the rank's own one, which is not overwritten.
struct Contribution {
  Range range;
  int ready = kNoStep;
};

// Adds the steps that combine the contributions (by position, two or more) into `dst`, along the
// one tree that all canonical algorithms share: neighbours first, the lower position on the left,
// an odd one out moves up: ((0 1) (2 3)) 4. Contributions in scratch are overwritten. The last step
// finishes the result, waits for `before_output` too, and is returned.
int AppendCanonicalSum(ScheduleBuilder* builder, std::vector<Contribution> contributions, Range dst,
                       int before_output);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CANONICAL_SUM_H_
