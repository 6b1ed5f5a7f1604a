#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_

#include <sched.h>

#include <algorithm>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Decides whether a wait spins before it sleeps, from how earlier spins went. Spinning saves a
// wake-up if the peer answers at once, and wastes a core if not. After each failed spin in a row,
// twice as many waits skip spinning. A value type.
class SpinPolicy {
 public:
  // How long a wait spins before it sleeps, and for how much of that it does not yield the core.
  // After kSpinTime it yields after every look: another thread may be the rank that it waits for.
  static constexpr Duration kWaitTime = kMillisecond / 10;
  static constexpr Duration kSpinTime = kMillisecond / 200;

  // Calls `look`, which returns a Result<bool>, until that is true or an error, or `limit` has
  // passed.
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

  // After each Wait. `over`: the spin succeeded, no sleep was needed.
  void Spun(bool over) {
    to_skip_ = over ? 0 : std::min((2 << std::min(failures_, 16)) - 1, kMaxToSkip);
    failures_ = over ? 0 : failures_ + 1;
  }

 private:
  static constexpr int kMaxToSkip = 256;

  int failures_ = 0;  // in a row
  int to_skip_ = 0;   // the number of next waits that sleep at once
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SPIN_POLICY_H_
