#ifndef TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCK_COORDINATOR_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCK_COORDINATOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/lock.h"

namespace tfring {

// Ends a locked schedule, on rank 0: collects the number of batches that each rank has entered, and
// decides which of them run. The calls of the others wait again: see the table in engine.h. Pure;
// part of the Negotiator.
class LockCoordinator {
 public:
  explicit LockCoordinator(int size) : frozen_(static_cast<size_t>(size)) {}

  void Start(LockMessage lock);

  // From Start until all ranks have frozen.
  bool locked() const { return locked_; }
  bool frozen(Rank rank) const { return frozen_[static_cast<size_t>(rank)].has_value(); }
  bool any_frozen() const { return count_ > 0; }

  // Internal if no correct rank sends this.
  Status OnFrozen(Rank rank, const LockMessage& message);

  // When all ranks have frozen: ends the schedule, and returns which batches run. The
  // values below stay until the next Start.
  std::optional<LockMessage> TakeUnlock();
  const LockedBatch& batch(uint64_t number) const {
    return lock_.batches[number % lock_.batches.size()];
  }
  uint64_t entered(Rank rank) const { return frozen_[static_cast<size_t>(rank)]->entered; }
  bool declined(Rank rank) const { return frozen_[static_cast<size_t>(rank)]->declined; }

 private:
  LockMessage lock_;
  bool locked_ = false;
  std::vector<std::optional<LockMessage>> frozen_;  // by rank
  size_t count_ = 0;                                // how many have
  Rank first_ = 0;                                  // the first of these
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCK_COORDINATOR_H_
