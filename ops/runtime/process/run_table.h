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

// In which attempt of each process set this rank is, and under which attempts its runs (executions
// of a TensorFlow graph) began. When a run fails, the rank leaves those attempts at once, so that
// the next run, on whatever thread, begins under the next ones; the engine learns of it by a
// Withdrawal. A call of a run whose attempt is over is refused. Thread-safe; lives for one
// generation.
class RunTable {
 public:
  // See RankRuntime. True if there are withdrawals for the engine.
  bool Begin(uint64_t run, ProcessSetId set);
  void End(uint64_t run);
  bool Fail(uint64_t run, const Status& cause);
  // This rank leaves those of these attempts in which it still is.
  bool Leave(const std::map<ProcessSetId, uint64_t>& attempts, const Status& cause);

  // The attempt that a call of `run` (0: none) belongs to. Aborted if it is over. There may be
  // withdrawals for the engine afterwards.
  Result<uint64_t> Admit(uint64_t run, ProcessSetId set);

  // In which attempt of the set this rank is.
  uint64_t Attempt(ProcessSetId set) const;

  // How many attempts, of any set, this rank has left because of what happened on others.
  uint64_t left_for_others() const;

  // Whether a run that fails with a call of the set may be under way: one that Begin told of.
  bool InRun(ProcessSetId set) const;

  // The engine left this attempt, because of an answer of rank 0. Before any `done` of its
  // calls.
  void OnLeft(const AttemptEnd& end);
  // Forgets the process sets that do not exist any more.
  void KeepOnly(const ProcessSets& sets);

  // The withdrawals since the last Drain. To be called after CallTable::Drain: then every call of
  // an attempt comes after the withdrawal from the one before.
  void Drain(std::vector<Withdrawal>* out);
  bool HasWithdrawals() const;

  // Runs that it knows: those that have begun, and some that have failed.
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
  // Under which attempt the run began to use the set, be it now.
  uint64_t BeginLocked(uint64_t run, ProcessSetId set);
  void LeaveLocked(ProcessSetId id, const Status& cause);

  mutable std::mutex mutex_;          // guards everything below
  std::map<ProcessSetId, Set> sets_;  // those of which an attempt is over
  std::unordered_map<uint64_t, Run> runs_;
  std::unordered_set<uint64_t> open_;  // of these, those that Begin told of, until End or Fail
  std::deque<uint64_t> failed_;        // runs that have failed, the oldest first
  std::vector<Withdrawal> withdrawals_;
  uint64_t left_for_others_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_RUN_TABLE_H_
