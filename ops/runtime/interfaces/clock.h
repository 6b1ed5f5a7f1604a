#ifndef TFRING_OPS_RUNTIME_INTERFACES_CLOCK_H_
#define TFRING_OPS_RUNTIME_INTERFACES_CLOCK_H_

#include "ops/runtime/base/types.h"

namespace tfring {

// Where "now" comes from: CLOCK_MONOTONIC in a real process, virtual time in the simulator.
// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_CLOCK_H_
