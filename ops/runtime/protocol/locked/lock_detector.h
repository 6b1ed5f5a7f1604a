#ifndef TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCK_DETECTOR_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCK_DETECTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "ops/runtime/protocol/message/lock.h"

namespace tfring {

// Finds plans that repeat, on rank 0. The plans between two moments at which nothing waits are a
// segment. Two segments are equal if they hold the same cache ids, however they were fused. A
// locked schedule fuses what was fused in all of the last kFusedRounds rounds, because in a batch
// the first call waits for the last one. The last schedule comes back with the fusion that it had.
// The result is a guess: a schedule that does not fit is slow, not wrong. Constant work per plan,
// limited memory. Pure; part of the Planner.
class LockDetector {
 public:
  // This many rounds in a row have to be equal.
  static constexpr uint64_t kRounds = 3;
  // The same where some tensors were fused in all of them.
  static constexpr uint64_t kFusedRounds = 5;

  // A plan that a lock may hold.
  void OnPlan(LockedBatch ids);
  // Any other plan.
  void OnOtherPlan() { odd_ = true; }

  // Whether there was a plan since the last OnQuiet.
  bool fresh() const { return odd_ || !present_.empty(); }

  // Nothing waits. Returns the batches of one round if it is time to lock them, else nothing.
  std::vector<LockedBatch> OnQuiet();

  // The schedule is over, and all ranks have entered `entered` of its batches. The calls of the ids
  // `early` came long before the others of their batches: the next schedule splits those batches.
  void OnUnlock(uint64_t entered, const LockedBatch& early = {});

  // The equal rounds that the next schedule needs, unless it is the last one again.
  uint64_t needed() const { return needed_; }

 private:
  static constexpr size_t kMaxSegments = 1024;  // of one round
  static constexpr size_t kMaxIds = 1 << 16;    // the same
  static constexpr uint64_t kMaxNeeded = 1024;

  struct Segment {
    LockedBatch ids;  // ascending
    std::vector<LockedBatch> batches;
  };
  void Add(Segment segment);
  bool IsLastLock(size_t segments) const;
  std::vector<LockedBatch> Lock(size_t segments);
  std::vector<LockedBatch> FusionOf(size_t segment, size_t segments, bool again) const;
  void Clear();

  std::vector<LockedBatch> present_;           // plans of the segment that is not complete
  size_t present_ids_ = 0;                     // of these
  bool odd_ = false;                           // it holds another plan, or is too long
  std::deque<Segment> segments_;               // the last ones
  uint64_t seen_ = 0;                          // how many there were in all
  std::map<LockedBatch, uint64_t> last_seen_;  // by ids: the number of the last such segment
  size_t period_ = 0;                          // 0: unknown
  uint64_t matched_ = 0;                       // last segments that equal the one a period before
  std::vector<LockedBatch> last_lock_;         // ids of its segments, sorted
  std::map<LockedBatch, std::vector<LockedBatch>> fused_;  // by these: its batches
  size_t locked_batches_ = 0;
  uint64_t needed_ = kRounds;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCK_DETECTOR_H_
