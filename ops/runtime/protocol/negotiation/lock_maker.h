#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_LOCK_MAKER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_LOCK_MAKER_H_

#include <cstdint>
#include <optional>

#include "ops/runtime/protocol/locked/lock_detector.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"

namespace tfring {

// Locks plans that repeat: see docs/adr/0045-locked-schedule.md. Part of the Planner.
class LockMaker {
 public:
  // `enabled`: whether it may lock at all.
  explicit LockMaker(bool enabled) : enabled_(enabled) {}

  // A plan got its number.
  void OnPlan(const Plan& plan, const ResponseCache& cache);
  // A plan failed.
  void OnFailure() { detector_.OnOtherPlan(); }

  // Whether OnQuiet is of use.
  bool wants_quiet() const { return enabled_ && detector_.fresh(); }
  // Nothing waits: a locked schedule with this number, if it is time for one.
  std::optional<LockMessage> OnQuiet(uint64_t id, uint64_t attempt);

  // From OnQuiet until OnUnlock.
  bool locked() const { return lock_.has_value(); }
  // The locked schedule is over. Returns the message that began it.
  LockMessage OnUnlock(const LockMessage& unlock);

 private:
  const bool enabled_;
  LockDetector detector_;
  std::optional<LockMessage> lock_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_LOCK_MAKER_H_
