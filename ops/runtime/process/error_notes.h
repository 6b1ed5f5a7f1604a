#ifndef TFRING_OPS_RUNTIME_PROCESS_ERROR_NOTES_H_
#define TFRING_OPS_RUNTIME_PROCESS_ERROR_NOTES_H_

#include <mutex>
#include <string>

#include "ops/runtime/base/status.h"

namespace tfring {

// Text from the program for errors that concern several ranks: where to read more, and the cause of
// the current stall. Thread-safe; lives for one generation.
class ErrorNotes {
 public:
  // From now on messages end with `note`. In the message of a stall, `stall` comes before it. ""
  // adds nothing.
  void Set(std::string note, std::string stall);

  // Returns the status with the texts added; unchanged if it concerns only one call or step.
  Status Added(Status status) const;

 private:
  mutable std::mutex mutex_;  // guards note_ and stall_
  std::string note_;
  std::string stall_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_ERROR_NOTES_H_
