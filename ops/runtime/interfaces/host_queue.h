#ifndef TFRING_OPS_RUNTIME_INTERFACES_HOST_QUEUE_H_
#define TFRING_OPS_RUNTIME_INTERFACES_HOST_QUEUE_H_

#include <cstdint>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The order in which this rank runs collectives through host memory, as a backend for devices sees
// it. All ranks have to run the same ones in the same order, so a backend takes its places in this
// order inside its Submit, and makes what it takes there depend on nothing but the collectives
// submitted so far. What follows a place waits until that place is run or released. Thread-safe;
// nothing blocks.
class HostQueue {
 public:
  virtual ~HostQueue() = default;

  // Takes the next place for a collective of host memory that only the backend knows of. `ended`
  // gets its one completion, on a thread of the host backend; must not block.
  virtual void Run(Collective collective, CompletionSink ended) = 0;

  // Takes the next place and keeps it, for a collective of which it is not known yet whether it
  // runs on the device. Ended by one call of Stage or Release, on any thread.
  virtual uint64_t Hold() = 0;
  // Runs it at its place, copied through host memory. Its completions go to the sink of the
  // runtime: the backend that held the place reports nothing.
  virtual void Stage(uint64_t place, Collective collective) = 0;
  // It does not run here.
  virtual void Release(uint64_t place) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_HOST_QUEUE_H_
