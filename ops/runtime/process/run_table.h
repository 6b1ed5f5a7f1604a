#ifndef TFRING_OPS_RUNTIME_PROCESS_RUN_TABLE_H_
#define TFRING_OPS_RUNTIME_PROCESS_RUN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

// Knows the present attempt of each process set, and the attempts in which the runs (executions of
// a TensorFlow graph) of this rank began. When a run fails, the rank leaves those attempts at once,
// so that the next run begins in the next ones, and a Withdrawal tells the engine. A call of a run
// whose attempt is over is refused. Thread-safe; lives for one generation.
class RunTable {
 public:
  // See RankRuntime. Return whether there are withdrawals for the engine.
  bool Begin(uint64_t run, ProcessSetId set);
  void End(uint64_t run);
  bool Fail(uint64_t run, const Status& cause);
  // Leaves these attempts, where this rank still is in them.
  bool Leave(const std::map<ProcessSetId, uint64_t>& attempts, const Status& cause);

  // Returns the attempt of a call of `run` (0: none); Aborted if it is over. There may be
  // withdrawals for the engine afterwards.
  Result<uint64_t> Admit(uint64_t run, ProcessSetId set);

  // The present attempt of the set.
  uint64_t Attempt(ProcessSetId set) const;

  // How many attempts of all sets this rank has left because of other ranks.
  uint64_t left_for_others() const;

  // Whether a run that uses the set is between Begin and End.
  bool InRun(ProcessSetId set) const;

  // The engine left this attempt because rank 0 said so. Call it before any `done` of its calls.
  void OnLeft(const AttemptEnd& end);
  // Forgets all other process sets.
  void KeepOnly(const ProcessSets& sets);

  // Appends the withdrawals since the last Drain. Call it after CallTable::Drain, so that each call
  // of an attempt comes after the withdrawal from the attempt before.
  void Drain(std::vector<Withdrawal>* out);
  bool HasWithdrawals() const;

  // The number of runs: those that have begun and some that have failed.
  size_t size() const;

 private:
  struct Set {
    uint64_t attempt = 0;
    Status error;  // of calls of the attempt before
  };
  struct Run {
    std::map<ProcessSetId, uint64_t> began;  // under which attempts
    Status failed;                           // not ok: it has failed, and why
  };
  uint64_t AttemptLocked(ProcessSetId set) const;
  // Returns the attempt in which the run began to use the set, perhaps now.
  uint64_t BeginLocked(uint64_t run, ProcessSetId set);
  void LeaveLocked(ProcessSetId id, const Status& cause);

  mutable std::mutex mutex_;          // guards everything below
  std::map<ProcessSetId, Set> sets_;  // those with an attempt that is over
  std::unordered_map<uint64_t, Run> runs_;
  std::unordered_set<uint64_t> open_;  // from Begin to End or Fail
  std::deque<uint64_t> failed_;        // runs that have failed, the oldest first
  std::vector<Withdrawal> withdrawals_;
  uint64_t left_for_others_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_RUN_TABLE_H_
