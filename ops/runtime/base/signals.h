#ifndef TFRING_OPS_RUNTIME_BASE_SIGNALS_H_
#define TFRING_OPS_RUNTIME_BASE_SIGNALS_H_

#include <signal.h>

#include <functional>
#include <thread>

#include "ops/runtime/base/export.h"

namespace tfring {

// While it lives, blocks signals for the calling thread and so for the threads it creates: the
// other threads of the process handle them. Not blocked are the signals that a thread causes by its
// own fault, as SIGSEGV: blocked, they would end the process without the handler that prints where
// it was.
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
