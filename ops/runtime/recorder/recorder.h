#ifndef TFRING_OPS_RUNTIME_RECORDER_RECORDER_H_
#define TFRING_OPS_RUNTIME_RECORDER_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/plan_marks.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/recorder/invocations.h"
#include "ops/runtime/recorder/record_memory.h"

namespace tfring {

// The rank and job of a record.
struct RecordIdentity {
  std::string path;  // of the file; empty: only in this process's memory
  std::string job;
  std::string host;
  std::string boot;
  Rank rank = 0;
  int local_rank = 0;
  int size = 1;
  Duration stall_shutdown = 0;
  Duration heartbeat_timeout = 0;
};

// The flight recorder: the latest calls and plans of this rank and what happened to them, in memory
// shared with a file that other processes read (see record_layout.h). Rings keep the newest
// entries; an entry that has not ended keeps its slot while the ring has others. After Create
// nothing but OriginOf allocates, waits or fails.
//
// The first four functions are for one thread at a time, which holds the call table's mutex;
// PlanQueued is for the thread that takes a step of the engine; the others are thread-safe. Lives
// for one generation, longer than its users.
class Recorder final : public TrafficSink {
 public:
  static Result<std::unique_ptr<Recorder>> Create(const RecordIdentity& identity);

  // Records an accepted call and returns its number. `flags`: the flags of CallRecord that do not
  // follow from the request.
  uint64_t Submitted(const Request& request, int64_t bytes, uint8_t flags, uint64_t attempt,
                     TimePoint now);
  // The plan of the call is about to run. Number 0 is no call.
  void Planned(uint64_t number, uint64_t sequence, const AskTimes& asked, TimePoint now);
  // On rank 0, once: when the ranks entered a batch of a lock with these calls.
  void Entered(const std::vector<uint64_t>& numbers, const AskTimes& asked);
  void Ended(uint64_t number, StatusCode status, TimePoint now);

  // The call site of a call that has not ended, and its number among the calls of its name.
  struct Origin {
    std::string call_site;
    uint32_t invocation = 0;
  };
  Origin OriginOf(uint64_t number);

  // The backend is about to get a plan. The result is valid as long as this object and belongs to
  // this plan for some thousand plans.
  PlanMarks* PlanQueued(const PlanRun& run, size_t tensors, int64_t bytes, TimePoint now);
  // Any thread.
  void PlanLaunched(uint64_t sequence, TimePoint now);
  void PlanEnded(uint64_t sequence, StatusCode status, TimePoint now);

  void Event(EventType type, StatusCode code, int64_t value, std::string_view text);
  void Awake(TimePoint now) { header().awake.store(now, std::memory_order_relaxed); }
  void Sent(int64_t bytes, int64_t cache_hits);
  // The bytes of the buffers in which the backend moves tensors.
  void Buffers(int64_t bytes) { header().buckets_memory.store(bytes, std::memory_order_relaxed); }
  // A lock of the schedule began or ended.
  void Locked(bool begins) {
    (begins ? header().locks : header().unlocks).fetch_add(1, std::memory_order_relaxed);
  }
  void LockRounds(int64_t rounds) { header().lock_rounds.store(rounds, std::memory_order_relaxed); }
  void SentTo(Rank to, int64_t bytes) override {
    memory_->rank(to).sent.fetch_add(bytes, std::memory_order_relaxed);
  }
  void State(RankState state) { header().state.store(static_cast<int32_t>(state)); }

  // The program begins step `step` and has trained on `samples` so far. Negative values change
  // nothing.
  void MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds);
  void MarkFit(const FitMark& fit);
  void MarkMemory(const MemoryMark& memory);

  // While paused, new calls and plans are not recorded, nor that this rank is awake; a plan that
  // began before stays open. For measuring the cost of the record. Thread-safe.
  void Pause(bool paused) { paused_.store(paused, std::memory_order_relaxed); }
  bool paused() const { return paused_.load(std::memory_order_relaxed); }

  // Nobody needs the file of a job that ended well.
  void RemoveFile();

  RecordHeader& header() { return memory_->header(); }
  RecordMemory& memory() { return *memory_; }

 private:
  explicit Recorder(std::unique_ptr<RecordMemory> memory) : memory_(std::move(memory)) {}
  bool SetAsked(uint64_t number, const AskTimes& asked);
  void CountLast(const AskTimes& asked);

  const std::unique_ptr<RecordMemory> memory_;
  Invocations invocations_;
  std::atomic<bool> paused_{false};
};

// Returns the record if there is one and it is not paused, else null.
inline Recorder* Recording(Recorder* recorder) {
  return recorder == nullptr || recorder->paused() ? nullptr : recorder;
}

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_RECORDER_RECORDER_H_
