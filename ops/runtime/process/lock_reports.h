#ifndef TFRING_OPS_RUNTIME_PROCESS_LOCK_REPORTS_H_
#define TFRING_OPS_RUNTIME_PROCESS_LOCK_REPORTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ops/runtime/protocol/message/lock_news.h"
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

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_LOCK_REPORTS_H_
