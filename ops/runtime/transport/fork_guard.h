#ifndef TFRING_OPS_RUNTIME_TRANSPORT_FORK_GUARD_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_FORK_GUARD_H_

#include "ops/runtime/base/status.h"

namespace tfring {

// Keeps forked children out of the job: as long as a child holds copies of a dead rank's sockets,
// the peers do not notice the death. A pthread_atfork handler closes the descriptors that are
// registered here in every child, and marks a child of a process whose runtime was alive, for good.
// The handler may use neither locks nor allocations, so this class does not. It is process-wide,
// because fork copies the process. Thread-safe.
class ForkGuard {
 public:
  // Registers a descriptor. InvalidArgument if its number is too large for the table.
  static Status Track(int fd);
  static void Untrack(int fd);

  // A child that is forked between these two calls is marked. Calls may be nested.
  static void RuntimeStarts();
  static void RuntimeEnded();

  // True in a process that was forked while a runtime was alive in its parent.
  static bool InForkedChild();
  static Status ForkedChildError();
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_FORK_GUARD_H_
