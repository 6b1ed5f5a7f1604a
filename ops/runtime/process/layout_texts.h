#ifndef TFRING_OPS_RUNTIME_PROCESS_LAYOUT_TEXTS_H_
#define TFRING_OPS_RUNTIME_PROCESS_LAYOUT_TEXTS_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include "ops/runtime/base/export.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// From now on, until the process ends, the layout of this hash is told by this text (see Layouts in
// protocol/negotiation/validation.h) to rank 0, which compares those of all ranks when the hashes
// differ. Any thread.
TFRING_EXPORT void DescribeLayout(uint64_t hash, std::string text);

// Puts the text of a layout into the first request with its hash. Thread-safe; lives for one
// generation.
class LayoutTexts {
 public:
  void AddTo(Request* request);

 private:
  std::mutex mutex_;  // guards told_
  std::set<uint64_t> told_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_LAYOUT_TEXTS_H_
