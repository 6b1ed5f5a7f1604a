#ifndef TFRING_OPS_RUNTIME_BASE_SIGNALS_H_
#define TFRING_OPS_RUNTIME_BASE_SIGNALS_H_

#include <signal.h>

#include <functional>
#include <thread>

#include "ops/runtime/base/export.h"

namespace tfring {

// While it lives, blocks signals for the calling thread and the threads that it creates, so that
// the other threads of the process handle them. Signals of a thread's own faults, such as SIGSEGV,
// are not blocked: otherwise the handler that prints where it happened would not run.
class TFRING_EXPORT SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Starts a thread that runs `body` with SignalsBlocked.
TFRING_EXPORT std::thread StartThread(std::function<void()> body);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_SIGNALS_H_
