#ifndef TFRING_OPS_RUNTIME_INTERFACES_HOPS_H_
#define TFRING_OPS_RUNTIME_INTERFACES_HOPS_H_

#include <cstdint>

#include "ops/runtime/base/types.h"

namespace tfring {

// A message between two ranks within a plan, as one of them saw it. Times are those of
// MonotonicNow. tfring/observe/timeline/hops.py has the same layout.
struct Hop {
  uint64_t sequence = 0;  // of the plan
  int64_t since = 0;      // the stream was free for it: the message before, or the plan, was there
  int64_t first = 0;      // its first bytes moved
  int64_t end = 0;
  int64_t bytes = 0;
  int32_t peer = kNoRank;
  uint32_t receives = 0;  // 1: from the peer; 0: to it
};
static_assert(sizeof(Hop) == 48);

// Gets hops from the thread that runs plans.
class HopSink {
 public:
  virtual ~HopSink() = default;
  virtual void Add(const Hop& hop) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_HOPS_H_
