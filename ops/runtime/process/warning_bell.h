#ifndef TFRING_OPS_RUNTIME_PROCESS_WARNING_BELL_H_
#define TFRING_OPS_RUNTIME_PROCESS_WARNING_BELL_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Wakes a thread of the program when the runtime has something to warn of, a stall say, or its
// generation has broken. The thread says it in its own words. Thread-safe. The waiting thread
// shares it, so it may live longer than the runtime that rings it.
class TFRING_EXPORT WarningBell {
 public:
  enum class Heard { kWarning, kNothing, kEnd };

  // It has happened at `now`. Returns whether the thread gets `warnings`. If not, the caller logs
  // them: no thread has ever waited, or it has not come for others for 5 s. It may need a lock that
  // the program keeps.
  [[nodiscard]] bool Ring(std::vector<std::string> warnings, TimePoint now);
  // There will be no more; also for those who come later.
  void Close();

  // Blocks until Ring or Close is called, at most for `limit`. Adds what Ring got to `warnings`.
  Heard Wait(Duration limit, std::vector<std::string>* warnings);

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<std::string> warnings_;  // for the thread
  TimePoint since_ = 0;                // of the oldest of them
  bool listens_ = false;               // a thread has waited
  bool rung_ = false;
  bool closed_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_WARNING_BELL_H_
