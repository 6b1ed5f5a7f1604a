#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_

#include <sched.h>

#include <algorithm>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Whether a wait begins with looking again and again, decided by what that has come to so far. It
// saves a wake-up where the peer answers at once, and wastes a core where it does not: each time in
// a row that it does not, it is left out for twice as many waits. A value type.
class SpinPolicy {
 public:
  // How long a wait looks before it sleeps, and for how much of that it keeps the core to itself.
  // After that every other thread that could run goes first: it may be the rank that is waited for.
  static constexpr Duration kWaitTime = kMillisecond / 10;
  static constexpr Duration kSpinTime = kMillisecond / 200;

  // Calls `look`, which returns a Result<bool>, until that is true or an error, or `limit` is over.
  template <typename Look>
  static Result<bool> Wait(Duration limit, const Look& look) {
    const TimePoint begin = MonotonicNow();
    for (;;) {
      Result<bool> seen = look();
      if (!seen.ok() || *seen) return seen;
      const Duration waited = MonotonicNow() - begin;
      if (waited >= limit) return false;
      if (waited >= kSpinTime) sched_yield();
    }
  }

  // Before each wait.
  bool ShouldSpin() {
    if (to_skip_ == 0) return true;
    --to_skip_;
    return false;
  }

  // After Wait: whether the wait was over by then.
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
