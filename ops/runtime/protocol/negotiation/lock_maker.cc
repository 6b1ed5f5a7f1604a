#include "ops/runtime/protocol/negotiation/lock_maker.h"

#include <utility>

namespace tfring {

void LockMaker::OnPlan(const Plan& plan, const ResponseCache& cache) {
  if (!enabled_) return;
  bool fits = plan.process_set == kGlobalProcessSet && plan.kind == CollectiveKind::kAllreduce &&
              plan.path == DataPath::kCpu && plan.error.ok() && plan.absent.empty() &&
              plan.evicted.empty();
  LockedBatch ids;
  bool has_bytes = false;
  for (const PlanItem& item : plan.items) {
    const auto agreement = cache.Find(item.cache_id);
    // Named, it is new to some rank. What is staged for a device is not recalled: it would be
    // copied back, and its results are used at its launch.
    fits = fits && item.name.empty() && agreement != nullptr && agreement->paths.empty() &&
           agreement->request.path == DataPath::kCpu;
    if (!fits) break;
    has_bytes |= TotalBytes(agreement->request) > 0;
    ids.push_back(item.cache_id);
  }
  if (fits && has_bytes) {
    detector_.OnPlan(std::move(ids));
  } else {
    detector_.OnOtherPlan();
  }
}

std::optional<LockMessage> LockMaker::OnQuiet(uint64_t id, uint64_t attempt) {
  LockMessage lock;
  lock.batches = detector_.OnQuiet();
  if (lock.batches.empty()) return std::nullopt;
  lock.id = id;
  lock.attempt = attempt;
  lock_ = lock;
  return lock;
}

LockMessage LockMaker::OnUnlock(const LockMessage& unlock) {
  detector_.OnUnlock(unlock.entered, unlock.reason.early);
  return std::move(*std::exchange(lock_, std::nullopt));
}

}  // namespace tfring
