#ifndef TFRING_OPS_RUNTIME_PROCESS_CONTROL_LOOP_H_
#define TFRING_OPS_RUNTIME_PROCESS_CONTROL_LOOP_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/process/completions.h"
#include "ops/runtime/process/error_notes.h"
#include "ops/runtime/process/inbox.h"
#include "ops/runtime/process/loop_reports.h"
#include "ops/runtime/process/run_table.h"
#include "ops/runtime/process/value_reports.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/recorder/recorder.h"

namespace tfring {

// Counts the control frames of one direction. Heartbeats are counted apart: they follow the clock,
// the other frames what the program does. Thread-safe.
class FrameCounts {
 public:
  void Add(const std::string& frame) {
    const bool beats = !frame.empty() && static_cast<FrameType>(frame[0]) == FrameType::kHeartbeat;
    (beats ? heartbeats_ : frames_).fetch_add(1, std::memory_order_relaxed);
  }
  int64_t frames() const { return frames_.load(std::memory_order_relaxed); }
  int64_t heartbeats() const { return heartbeats_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> frames_{0};
  std::atomic<int64_t> heartbeats_{0};
};

// Connects the engine, which only decides, with the world: a loop that gathers events from the call
// table, the control transport and the backend, calls Engine::Step, and carries out its effects:
// frames to send, collectives to submit, calls to end. Between two steps it sleeps in the transport
// until the engine's next deadline. Other threads put what they have into the call table or the
// inbox, and wake the loop only if it sleeps: `asleep_` is set before the last look at the queues,
// so an addition is either seen by that look or finds the flag set. In a locked schedule a
// submission needs no message. So the submitting thread runs the engine step itself, if no other
// thread is running one, and the control thread stays asleep. Run is the body of the control
// thread. Lives for one generation; all that it points to outlives it.
class ControlLoop {
 public:
  // `recorder` may be null.
  ControlLoop(EngineOptions options, std::unique_ptr<ControlTransport> transport, CallTable* table,
              RunTable* runs, Completions* completions, const ErrorNotes* notes,
              Recorder* recorder);
  ~ControlLoop();

  // Where the backend reports to. The backend is given before Run.
  CompletionSink Sink();
  // Before Run; may be null. See LoopReports.
  void SetWarningEvent(std::shared_ptr<WarningEvent> event) {
    reports_.SetWarningEvent(std::move(event));
  }
  void SetBackend(std::unique_ptr<CollectiveBackend> backend) { backend_ = std::move(backend); }

  // Instead of Run, if its thread could not be started.
  void DropBackend(const Status& why);

  // Returns after a shutdown, when the backend and the transport are closed and every call has been
  // handed to the completions.
  void Run();

  // The call table has a new call. Any thread.
  void NotifySubmission();
  // Whether this rank entered batches of a locked schedule at the last step. Any thread.
  bool locked() const { return locked_; }
  // The run table has a withdrawal. Any thread.
  void NotifyWithdrawal() { WakeIfAsleep(); }
  // This rank ends the generation without a goodbye: Run returns soon. Calls that have no result by
  // then end with `why`; those that the backend runs end once it no longer uses their buffers. The
  // first call of Abandon counts. Any thread.
  void Abandon(const Status& why);
  // This rank leaves; Run returns soon. `error` as in EngineEvents. Any thread.
  void RequestShutdown(const std::string& error);

  // The process sets after the last plan that this rank has taken. Any thread.
  std::shared_ptr<const ProcessSets> process_sets() const;

  // After the last step. Any thread.
  std::shared_ptr<const GenerationHealth> health() const;

  // Whether Run has a reason to continue after RequestShutdown: data has moved since the last call,
  // which left a number in `seen`, or rank 0 plans for others. Any thread.
  bool Progresses(int64_t* seen) const;

  // Any thread, during Run or after it.
  struct Counts {
    int64_t control_wakeups = 0;
    int64_t data_wakeups = 0;
    int64_t bytes_sent = 0;
    int64_t plans = 0;
    int64_t collectives = 0;
    int64_t tensors = 0;
    int64_t forwarded = 0;
    int64_t cache_hits = 0;
    // Control frames without heartbeats, and heartbeats.
    int64_t frames_sent = 0;
    int64_t frames_received = 0;
    int64_t heartbeats_sent = 0;
    int64_t heartbeats_received = 0;
  };
  Counts counts() const;
  // As LockReports::Counts. Any thread.
  std::map<std::string, int64_t> lock_counts() const { return reports_.locks().Counts(); }

 private:
  void OnCompletion(Completion completion);
  void ReportValues(const Completion& completion);
  void WakeIfAsleep();
  void Sleep(std::vector<ControlEvent>* events);
  // These have step_mutex_.
  TimePoint SleepsUntil();
  void TakeStep(std::vector<ControlEvent> control);
  EngineEvents Gather(std::vector<ControlEvent> control);
  void Apply(EngineEffects effects);
  void StartPlan(const PlanRun& run);
  void Count(const std::vector<TensorBuffer>& buffers, size_t calls);
  void Leave();
  void Abandoned(const Status& why);

  const Rank rank_;
  LoopReports reports_;
  ValueReports value_reports_;
  // A thread that runs a step holds it from the look at the queues until the effects are carried
  // out. It guards the engine and the order in which plans reach the backend. Only the control
  // thread waits for it.
  std::mutex step_mutex_;
  Engine engine_;
  TimePoint sleeps_until_ = 0;  // guarded by step_mutex_; of the control thread
  // Guarded by step_mutex_: another thread has run a step since the control thread went to sleep.
  bool stepped_for_it_ = false;
  bool over_ = false;  // guarded by step_mutex_; no more steps
  CallTable* const table_;
  RunTable* const runs_;
  Completions* const completions_;
  const ErrorNotes* const notes_;
  const std::unique_ptr<ControlTransport> transport_;
  std::unique_ptr<CollectiveBackend> backend_;

  // True from just before the control thread looks at its queues for the last time until it is
  // awake. A thread that adds to a queue and finds it true has to wake the control thread.
  std::atomic<bool> asleep_{false};
  // EngineEffects::finished, stays and awaits_end of the last step.
  std::atomic<bool> finished_{false};
  std::atomic<bool> stays_{false};
  std::atomic<bool> awaits_end_{false};
  std::atomic<bool> locked_{false};  // see locked()

  mutable std::mutex state_mutex_;  // guards sets_ and health_
  std::shared_ptr<const ProcessSets> sets_;
  std::shared_ptr<const GenerationHealth> health_;

  Inbox inbox_;

  mutable std::mutex counts_mutex_;  // guards counts_ and the end of backend_
  Counts counts_;

  FrameCounts sent_;
  FrameCounts received_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_CONTROL_LOOP_H_
