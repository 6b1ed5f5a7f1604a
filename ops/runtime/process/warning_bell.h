#ifndef TFRING_OPS_RUNTIME_PROCESS_WARNING_BELL_H_
#define TFRING_OPS_RUNTIME_PROCESS_WARNING_BELL_H_

#include <condition_variable>
#include <mutex>

#include "ops/runtime/base/types.h"

namespace tfring {

// Wakes a thread of the program when the runtime has warned, of a stall say, or its generation has
// broken, which is a warning here, too. Thread-safe. The waiting thread shares it, so it may live
// longer than the runtime that rings it.
class WarningBell {
 public:
  enum class Heard { kWarning, kNothing, kEnd };

  // It has happened. Warnings that nobody waits for are kept as one.
  void Ring();
  // There will be no more; also for those who come later.
  void Close();

  // Blocks until one of both happens, or for so long.
  Heard Wait(Duration limit);

 private:
  std::mutex mutex_;  // guards rung_ and closed_
  std::condition_variable changed_;
  bool rung_ = false;
  bool closed_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_WARNING_BELL_H_
