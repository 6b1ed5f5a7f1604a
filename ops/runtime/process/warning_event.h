#ifndef TFRING_OPS_RUNTIME_PROCESS_WARNING_EVENT_H_
#define TFRING_OPS_RUNTIME_PROCESS_WARNING_EVENT_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Wakes a thread of the program when the runtime has a warning, such as a stall, or its generation
// has broken. That thread logs the warnings. Thread-safe. The waiting thread shares the object,
// which may therefore outlive the runtime.
class TFRING_EXPORT WarningEvent {
 public:
  enum class Outcome { kWarning, kTimeout, kEnd };

  // Returns whether the thread gets `warnings`. If not, the caller must log them: no thread has
  // ever waited, or it has not taken earlier warnings for 5 s. It may need a lock that the program
  // holds.
  [[nodiscard]] bool Signal(std::vector<std::string> warnings, TimePoint now);
  // Every wait ends with kEnd from now on.
  void Close();

  // Blocks until Signal or Close is called, at most for `limit`. Appends to `warnings`.
  Outcome Wait(Duration limit, std::vector<std::string>* warnings);

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<std::string> warnings_;  // for the thread
  TimePoint since_ = 0;                // of the oldest of them
  bool listens_ = false;               // a thread has waited
  bool signalled_ = false;
  bool closed_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_WARNING_EVENT_H_
