#ifndef TFRING_OPS_RUNTIME_PROCESS_CALL_NOTES_H_
#define TFRING_OPS_RUNTIME_PROCESS_CALL_NOTES_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include "ops/runtime/base/export.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// Facts about calls that the program gives before it makes them.

// Where the user's program is. Eager ops take it from the thread and not from an attribute, because
// TensorFlow keeps a kernel for each combination of attributes that it has seen, and a program has
// many lines. Ops of graphs have the attribute.
struct CallSite {
  std::string line;      // "train.py:40"; empty: unknown
  bool unnamed = false;  // see Request
};

// Sets the call site of this thread's next call.
TFRING_EXPORT void SetCallSite(CallSite site);

// Gives the request the call site that was set for this thread, unless it has one. Clears the
// thread's call site.
TFRING_EXPORT void AddCallSite(Request* request);

// Until the process ends, `text` describes the layout of this hash to rank 0, which compares the
// texts of all ranks when their hashes differ (Layouts in protocol/negotiation/validation.h). Any
// thread.
TFRING_EXPORT void DescribeLayout(uint64_t hash, std::string text);

// Adds the text of a layout to the first request with its hash. Thread-safe; lives for one
// generation.
class LayoutTexts {
 public:
  void AddTo(Request* request);

 private:
  std::mutex mutex_;  // guards told_
  std::set<uint64_t> told_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_CALL_NOTES_H_
