#ifndef TFRING_OPS_RUNTIME_PROCESS_ERROR_NOTES_H_
#define TFRING_OPS_RUNTIME_PROCESS_ERROR_NOTES_H_

#include <mutex>
#include <string>

#include "ops/runtime/base/status.h"

namespace tfring {

// What the program knows about errors that concern several ranks, for their messages: where to read
// more, and what the present stall comes from. Thread-safe; lives for one generation.
class ErrorNotes {
 public:
  // From now on `note` ends the messages. In those of a stall `stall` comes before it. "" adds
  // nothing.
  void Set(std::string note, std::string stall);

  // Returns the status with what belongs to it, or as it is if it concerns one call or step alone.
  Status Added(Status status) const;

 private:
  mutable std::mutex mutex_;  // guards note_ and stall_
  std::string note_;
  std::string stall_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_ERROR_NOTES_H_
