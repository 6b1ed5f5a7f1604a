#include <utility>

#include "ops/runtime/protocol/negotiation/sequencer.h"

// When the plans repeat they are locked: see docs/adr/0045-locked-schedule.md.
namespace tfring {

// Remembers a plan that got its number.
void Sequencer::NotePlan(const Plan& plan) {
  if (!locks_) return;
  bool fits = plan.process_set == kGlobalProcessSet && plan.kind == CollectiveKind::kAllreduce &&
              plan.path == DataPath::kCpu && plan.error.ok() && plan.absent.empty() &&
              plan.evicted.empty();
  LockedBatch ids;
  bool has_bytes = false;
  for (const PlanItem& item : plan.items) {
    const auto agreement = cache_.Find(item.cache_id);
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

// A lock, if it is time for one.
std::optional<LockMessage> Sequencer::MakeLock() {
  if (!locks_ || !detector_.fresh() || !Quiet()) return std::nullopt;
  LockMessage lock;
  lock.batches = detector_.OnQuiet();
  if (lock.batches.empty()) return std::nullopt;
  lock.id = ++last_sequence_;
  lock.attempt = attempts_.Over(kGlobalProcessSet);
  lock_ = lock;
  return lock;
}

// Nothing waits, and the next requests of every rank are its first after the last plan.
bool Sequencer::Quiet() const {
  if (!readiness_.all().empty() || !errors_.empty() || !awaited_.empty() || !joins_.empty() ||
      !evicted_.empty() || !departed_.empty()) {
    return false;
  }
  for (Rank rank : *sets_.Find(kGlobalProcessSet)) {
    if (attempts_.WhyOver(kGlobalProcessSet, rank) != nullptr) return false;
  }
  return true;
}

Status Sequencer::OnUnlock(const LockMessage& unlock, const LockCoordinator& ranks, TimePoint now) {
  const LockMessage lock = std::move(*std::exchange(lock_, std::nullopt));
  last_sequence_ = lock.id + unlock.high;
  detector_.OnUnlock(unlock.entered, unlock.reason.early);
  for (Rank rank : *sets_.Find(kGlobalProcessSet)) {
    for (uint64_t number = unlock.entered; number < ranks.entered(rank); ++number) {
      const LockedBatch& batch = lock.batches[number % lock.batches.size()];
      TFRING_RETURN_IF_ERROR(OnRequests(rank, {}, batch, now));
    }
  }
  return OkStatus();
}

}  // namespace tfring
