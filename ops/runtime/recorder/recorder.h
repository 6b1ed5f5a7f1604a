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

// Which rank of which job a record is of.
struct RecordIdentity {
  std::string path;  // of the file; empty: the record is in this process's memory only
  std::string job;
  std::string host;
  std::string boot;
  Rank rank = 0;
  int local_rank = 0;
  int size = 1;
  Duration stall_shutdown = 0;
  Duration heartbeat_timeout = 0;
};

// The flight recorder: what this rank has called and run of late, and what happened to it, in
// memory that is shared with a file and that other processes read (see record_layout.h). Rings keep
// the newest entries; an entry that has not ended yet keeps its slot as long as the ring has
// others. After Create nothing here allocates, waits or fails, except OriginOf, which is for those
// who ask.
//
// The first four functions are for one thread at a time (the call table's lock sees to that),
// PlanQueued for whoever takes a step of the engine, the others thread-safe. Lives for one
// generation, longer than all that use it.
class Recorder final : public TrafficSink {
 public:
  static Result<std::unique_ptr<Recorder>> Create(const RecordIdentity& identity);

  // A call was accepted; returns its number. `flags`: those of CallRecord that the request does not
  // tell.
  uint64_t Submitted(const Request& request, int64_t bytes, uint8_t flags, uint64_t attempt,
                     TimePoint now);
  // Its plan came, and is about to run. Number 0 is no call.
  void Planned(uint64_t number, uint64_t sequence, const AskTimes& asked, TimePoint now);
  // On rank 0: when ranks have entered a batch of a lock, which has these calls. It counts once.
  void Entered(const std::vector<uint64_t>& numbers, const AskTimes& asked);
  void Ended(uint64_t number, StatusCode status, TimePoint now);

  // Of a call that has not ended: where it was made, and the how manieth of its name it is.
  struct Origin {
    std::string call_site;
    uint32_t invocation = 0;
  };
  Origin OriginOf(uint64_t number);

  // A plan is about to be handed to the backend, with so many tensors. What is returned is valid
  // until this object ends, and belongs to this plan for some thousand plans.
  PlanMarks* PlanQueued(const PlanRun& run, size_t tensors, int64_t bytes, TimePoint now);
  // Any thread.
  void PlanLaunched(uint64_t sequence, TimePoint now);
  void PlanEnded(uint64_t sequence, StatusCode status, TimePoint now);

  void Event(EventType type, StatusCode code, int64_t value, std::string_view text);
  void Awake(TimePoint now) { header().awake.store(now, std::memory_order_relaxed); }
  void Sent(int64_t bytes, int64_t cache_hits);
  // A lock of the schedule has begun, or ended.
  void Locked(bool begins) {
    (begins ? header().locks : header().unlocks).fetch_add(1, std::memory_order_relaxed);
  }
  void LockRounds(int64_t rounds) { header().lock_rounds.store(rounds, std::memory_order_relaxed); }
  void SentTo(Rank to, int64_t bytes) override {
    memory_->rank(to).sent.fetch_add(bytes, std::memory_order_relaxed);
  }
  void State(RankState state) { header().state.store(static_cast<int32_t>(state)); }

  // The program is in step `step` since now, and has trained on `samples` so far. Negative values
  // change nothing.
  void MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds);
  void MarkFit(const FitMark& fit);

  // While it is paused, new calls and plans leave no trace here, not even that this rank is awake.
  // A plan that began before stays open. For measuring what the record costs. Thread-safe.
  void Pause(bool paused) { paused_.store(paused, std::memory_order_relaxed); }
  bool paused() const { return paused_.load(std::memory_order_relaxed); }

  // Of a job that ended well nobody needs the file.
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

// The record that calls and plans are written to now: null where there is none, and while it is
// paused.
inline Recorder* Recording(Recorder* recorder) {
  return recorder == nullptr || recorder->paused() ? nullptr : recorder;
}

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_RECORDER_RECORDER_H_
