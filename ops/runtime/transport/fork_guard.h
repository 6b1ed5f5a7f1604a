#ifndef TFRING_OPS_RUNTIME_TRANSPORT_FORK_GUARD_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_FORK_GUARD_H_

#include "ops/runtime/base/status.h"

namespace tfring {

// Keeps forked children out of the job: a child that held our sockets would hide our death from the
// peers. Descriptors that are tracked here are closed in a child by pthread_atfork, and a child of
// a process whose runtime was alive is marked for ever. Lock-free and without allocation, because
// the child handler may use neither. Process-wide by nature: fork copies the process. Thread-safe.
class ForkGuard {
 public:
  // Registers a descriptor; those that do not fit the table are refused.
  static Status Track(int fd);
  static void Untrack(int fd);

  // Between these two calls a fork marks the child. They nest.
  static void RuntimeStarts();
  static void RuntimeEnded();

  // True in a process that was forked while a runtime was alive in its parent.
  static bool InForkedChild();
  static Status ForkedChildError();
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_FORK_GUARD_H_
