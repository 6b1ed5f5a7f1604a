#include "ops/runtime/protocol/locked/lock_coordinator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tfring {

void LockCoordinator::Start(LockMessage lock) {
  lock_ = std::move(lock);
  locked_ = true;
  count_ = 0;
  for (auto& frozen : frozen_) frozen.reset();
}

Status LockCoordinator::OnFrozen(Rank rank, const LockMessage& message) {
  if (!locked_ || message.id != lock_.id || frozen(rank)) {
    return Internal("it has frozen in lock " + std::to_string(message.id) +
                    (locked_ ? ", but the lock is " + std::to_string(lock_.id) +
                                   (frozen(rank) ? ", in which it had frozen before" : "")
                             : ", but there is no lock"));
  }
  if (!any_frozen()) {
    if (message.reason.cause == UnlockCause::kFollows) {
      return Internal("it is the first to freeze in lock " + std::to_string(lock_.id) +
                      ", but does not say why");
    }
    first_ = rank;
  }
  frozen_[static_cast<size_t>(rank)] = message;
  ++count_;
  return OkStatus();
}

std::optional<LockMessage> LockCoordinator::TakeUnlock() {
  if (!locked_ || count_ < frozen_.size()) return std::nullopt;
  locked_ = false;
  LockMessage unlock;
  unlock.id = lock_.id;
  unlock.entered = UINT64_MAX;
  unlock.rank = first_;
  unlock.reason = frozen_[static_cast<size_t>(first_)]->reason;
  for (const auto& frozen : frozen_) {
    unlock.entered = std::min(unlock.entered, frozen->entered);
    unlock.high = std::max(unlock.high, frozen->entered);
  }
  return unlock;
}

}  // namespace tfring
