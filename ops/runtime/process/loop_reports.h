#ifndef TFRING_OPS_RUNTIME_PROCESS_LOOP_REPORTS_H_
#define TFRING_OPS_RUNTIME_PROCESS_LOOP_REPORTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/base/tensor_buffer.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/process/warning_event.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/recorder/recorder.h"

namespace tfring {

// Reports locked schedules: counts, events in the record of this rank and, on rank 0, lines in the
// log. A program may begin and end locked schedules all the time, which would push everything else
// out of the record. So only the first, second, fourth, eighth ... begin is reported, and for each
// cause the first, second, fourth ... end. One thread at a time calls Report and Rounds, any thread
// Counts.
class LockReports {
 public:
  // `recorder` may be null.
  LockReports(Rank rank, Recorder* recorder) : rank_(rank), recorder_(recorder) {}

  void Report(const LockNews& news);
  // The number of rounds that all locked schedules have run until now.
  void Rounds(uint64_t rounds);

  // "locks" that have begun, "lock_rounds", and "unlocks_CAUSE" for each cause.
  std::map<std::string, int64_t> Counts() const;

 private:
  void Tell(const LockNews& news, int64_t number);

  const Rank rank_;
  Recorder* const recorder_;
  std::atomic<int64_t> locks_{0};
  std::atomic<int64_t> rounds_{0};
  std::array<std::atomic<int64_t>, kUnlockCauses> unlocks_{};  // by cause
};

// Reports of the control loop to the record, the log and the program. Only the thread that runs a
// step may call these, except `locks().Counts` and PlanEnded.
class LoopReports {
 public:
  // `recorder` may be null.
  LoopReports(Rank rank, Recorder* recorder) : recorder_(recorder), locks_(rank, recorder) {}

  // Signalled for warnings, and when the generation breaks. May be null.
  void SetWarningEvent(std::shared_ptr<WarningEvent> event) { warning_event_ = std::move(event); }

  // After a step that began at `now`.
  void Step(const EngineEffects& effects, TimePoint now, const CollectiveBackend& backend,
            const Engine& engine);
  // Gives the warnings to the program, or to the log if no thread of the program takes them.
  void Warn(std::vector<std::string> warnings, bool broken);

  // Adds to the collective where its progress is recorded.
  void PlanQueued(const PlanRun& run, TimePoint now, Collective* collective);
  void PlanEnded(const Completion& completion, TimePoint now);
  // At the end of the backend.
  void Sent(int64_t bytes_sent, int64_t cache_hits);

  const LockReports& locks() const { return locks_; }

 private:
  void Record(const EngineEffects& effects);

  Recorder* const recorder_;
  LockReports locks_;
  std::shared_ptr<WarningEvent> warning_event_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_LOOP_REPORTS_H_
