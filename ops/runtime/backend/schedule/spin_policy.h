#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_

#include <algorithm>

#include "ops/runtime/base/types.h"

namespace tfring {

// Whether a wait begins with spinning, decided by what that has come to so far. Spinning saves a
// wake-up where the peer answers at once, and wastes a core where it does not: each time in a row
// that it does not, spinning is left out for twice as many waits. A value type.
class SpinPolicy {
 public:
  static constexpr Duration kSpinTime = kMillisecond / 50;

  // Before each wait.
  bool ShouldSpin() {
    if (to_skip_ == 0) return true;
    --to_skip_;
    return false;
  }

  // After spinning: whether the wait was over by then.
  void Spun(bool over) {
    to_skip_ = over ? 0 : std::min((2 << std::min(failures_, 16)) - 1, kMaxToSkip);
    failures_ = over ? 0 : failures_ + 1;
  }

 private:
  static constexpr int kMaxToSkip = 256;

  int failures_ = 0;  // in a row
  int to_skip_ = 0;   // waits that begin with sleeping
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_
