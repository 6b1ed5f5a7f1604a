#ifndef TFRING_OPS_RUNTIME_PROCESS_INBOX_H_
#define TFRING_OPS_RUNTIME_PROCESS_INBOX_H_

#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/protocol/engine/engine.h"

namespace tfring {

// Messages from other threads to the control thread: ended plans, and that this rank leaves or
// abandons the generation. Thread-safe.
class Inbox {
 public:
  // Returns whether this rank leaves.
  bool Add(Completion completion);
  // `error` as in EngineEvents.
  void RequestShutdown(const std::string& error);
  // The first call counts.
  void Abandon(const Status& why);
  // Not OK once Abandon was called.
  Status abandoned() const;

  // Whether the control thread may sleep until something else wakes it. A successful completion can
  // wait, unless `awaits_end` (the next plan needs it) or this rank leaves.
  bool CanWait(bool awaits_end) const;

  void Drain(EngineEvents* events);

 private:
  mutable std::mutex mutex_;  // guards all below
  std::vector<Completion> completions_;
  bool shutdown_ = false;
  std::string error_;
  Status abandon_;
  bool leaving_ = false;  // stays set after RequestShutdown
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_INBOX_H_
