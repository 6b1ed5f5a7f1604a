#ifndef TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCKED_SCHEDULE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCKED_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/lock.h"

namespace tfring {

// One rank's view of a locked schedule: which of its calls wait, and which batch it may enter. The
// rank enters batches in order, round after round, each as soon as its calls of all ids of the
// batch wait. A call counts for the next batch that has its id, because a name has at most one call
// that waits. Pure; part of LockedCalls.
class LockedSchedule {
 public:
  // The calls of a batch are apart if, in kApartRounds rounds in a row, the first comes at least
  // kApart before the last.
  static constexpr Duration kApart = 5 * kMillisecond;
  static constexpr int kApartRounds = 5;

  LockedSchedule(uint64_t id, std::vector<LockedBatch> batches);

  uint64_t id() const { return id_; }
  bool Has(uint32_t cache_id) const { return calls_.count(cache_id) > 0; }

  // The call of this id waits from now on. The schedule has the id.
  void OnCall(uint32_t cache_id, TimePoint now);

  // Enters the next batch if its calls are there, and returns its number.
  std::optional<uint64_t> Enter(TimePoint now);

  // Of the batch that was entered last: the ids whose calls came before the others for
  // kApartRounds. The batch could have begun without the others.
  LockedBatch Apart() const;

  // A batch that was entered has ended.
  void OnEnded() { --running_, ++activity_; }

  // From now on this rank enters no batch.
  void Freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }

  uint64_t entered() const { return entered_; }
  const LockedBatch& batch(uint64_t number) const { return batches_[number % batches_.size()]; }
  size_t batches() const { return batches_.size(); }  // of a round
  uint64_t SequenceOf(uint64_t number) const { return id_ + 1 + number; }

  // Whether a call waits, or an entered batch waits for other ranks or for its data.
  bool waits() const { return !frozen_ && (waiting_ > 0 || running_ > 0); }
  // Changes with every batch that is entered or ends, and when something begins to wait.
  uint64_t activity() const { return activity_; }

 private:
  void CountMissing();
  void WatchSpread(TimePoint first, TimePoint now);

  const uint64_t id_;
  const std::vector<LockedBatch> batches_;
  struct OfId {
    bool waits = false;
    TimePoint since = 0;        // when it came
    uint64_t due = UINT64_MAX;  // entered_ if the next batch has it
  };
  std::unordered_map<uint32_t, OfId> calls_;  // by cache id
  size_t waiting_ = 0;                        // how many wait
  uint64_t entered_ = 0;
  size_t missing_ = 0;  // calls of the next batch that do not wait
  size_t running_ = 0;
  uint64_t activity_ = 0;
  bool frozen_ = false;
  TimePoint last_entry_ = 0;
  struct Spread {
    LockedBatch early;  // in all of the last `rounds`
    int rounds = 0;
  };
  std::vector<Spread> spreads_;  // by batch of a round
};

// Tells when something has waited too long in a locked schedule. The schedule should then end:
// without it rank 0 sees which rank waits for which.
class LockTimer {
 public:
  static constexpr Duration kPatience = 100 * kMillisecond;

  // Call it after each change. `lock` may be null.
  void Update(const LockedSchedule* lock, TimePoint now);
  void PutOff(Duration pause) { since_ += waits_ ? pause : 0; }
  TimePoint deadline() const { return waits_ ? since_ + kPatience : kNever; }
  // `progress` differs from the last if data has moved: then the wait begins anew.
  bool Expired(TimePoint now, int64_t progress);

 private:
  bool waits_ = false;
  TimePoint since_ = 0;
  uint64_t lock_ = 0;
  uint64_t activity_ = 0;
  int64_t progress_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_LOCKED_LOCKED_SCHEDULE_H_
