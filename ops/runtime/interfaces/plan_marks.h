#ifndef TFRING_OPS_RUNTIME_INTERFACES_PLAN_MARKS_H_
#define TFRING_OPS_RUNTIME_INTERFACES_PLAN_MARKS_H_

#include <atomic>
#include <cstdint>

#include "ops/runtime/base/types.h"

namespace tfring {

// How far a plan is on this rank, written by whoever is at work on it and read by other processes
// at any time: part of the records of a job (recorder/record_layout.h). Times are those of
// MonotonicNow; 0: not yet. A writer changes single fields, so a reader may see a wait whose parts
// belong to two moments.
struct PlanMarks {
  std::atomic<int64_t> started{0};   // its first bytes could move
  std::atomic<int64_t> launched{0};  // a device has all of its work
  std::atomic<int64_t> ended{0};
  // What keeps it waiting while its thread sleeps; waits_since is 0 while it does not.
  std::atomic<int64_t> waits_since{0};
  std::atomic<int64_t> waits_bytes{0};
  std::atomic<int32_t> waits_peer{kNoRank};
  std::atomic<uint32_t> waits_receives{0};  // 1: for bytes from the peer; 0: for the peer to take
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_PLAN_MARKS_H_
