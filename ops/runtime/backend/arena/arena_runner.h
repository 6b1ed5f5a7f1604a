#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_RUNNER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/runtime/backend/arena/arena_collective.h"
#include "ops/runtime/backend/schedule/progress_watch.h"
#include "ops/runtime/backend/schedule/runner.h"
#include "ops/runtime/backend/schedule/spin_policy.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/host_memory.h"

namespace tfring {

// Runs collectives in the arenas of a host, as ScheduleRunner runs schedules over streams:
// advances, spins for a moment, sleeps until another rank has changed something, and reports a lack
// of progress. Used by one thread. After a failure the arenas are in the middle of a plan, and
// nothing else can run.
class ArenaRunner {
 public:
  // To end a Run, set `poison` and then interrupt the transport that `memory` comes from.
  ArenaRunner(HostMemory* memory, Rank self, const std::atomic<bool>* poison)
      : memory_(memory), poison_(poison), machine_(memory, self) {}

  bool Reaches(const Collective& collective) const {
    return ArenaCollective::Reaches(*memory_, collective);
  }
  void Watch(ProgressWatch watch, ScheduleRunner::QuietHook hook);

  // Begins a collective that this reaches: one that ArenaCollective runs, or the entry to a batch
  // of a locked schedule.
  void Start(const Collective& collective, const Reduction& reduction);
  // Runs it, and returns whether it has ended. If `until` is not kNever, this never sleeps, but
  // spins until then if earlier spins succeeded (SpinPolicy). The status is that of
  // ScheduleRunner::Run.
  Result<bool> Run(TimePoint until);
  // Of a collective that has ended: whether not all members have entered.
  bool recalled() const { return machine_.recalled(); }
  AskTimes entered() const { return machine_.entered(); }

  std::vector<ScheduleRunner::Wait> Waits() const;
  Rank suspect() const { return suspect_; }
  int64_t moves() const { return moves_.load(std::memory_order_relaxed); }
  int64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  Result<bool> RunToEnd(TimePoint until);
  Result<bool> Advance();
  Result<bool> Spin(Duration limit);
  Status WaitForRanks();
  Status CheckProgress();
  void MarkWait(TimePoint now);
  void NoteTraffic();

  HostMemory* const memory_;
  const std::atomic<bool>* const poison_;
  ArenaCollective machine_;
  const Collective* collective_ = nullptr;
  bool failed_ = false;
  Rank suspect_ = kNoRank;
  SpinPolicy spins_before_meeting_;
  SpinPolicy spins_after_;
  SpinPolicy spins_as_caller_;
  ProgressWatch watch_;
  ScheduleRunner::QuietHook quiet_hook_;
  std::atomic<int64_t> moves_{0};
  std::atomic<int64_t> wakeups_{0};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_RUNNER_H_
