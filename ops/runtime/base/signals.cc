#include "ops/runtime/base/signals.h"

#include <pthread.h>

#include <initializer_list>
#include <utility>

namespace tfring {

SignalsBlocked::SignalsBlocked() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own_fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&blocked, own_fault);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::thread StartThread(std::function<void()> body) {
  SignalsBlocked for_the_thread;
  return std::thread(std::move(body));
}

}  // namespace tfring
