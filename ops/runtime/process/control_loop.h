#ifndef TFRING_OPS_RUNTIME_PROCESS_CONTROL_LOOP_H_
#define TFRING_OPS_RUNTIME_PROCESS_CONTROL_LOOP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/process/completion_thread.h"
#include "ops/runtime/process/member_table.h"
#include "ops/runtime/protocol/engine/engine.h"

namespace tfring {

// The loop that turns what happens into Engine::Step and its effects into sends, submitted
// collectives and results. Run is the body of one thread; the other methods are called by other
// threads and only leave a note and wake that thread if it sleeps. Lives for one generation; the
// tables and the completion thread outlive it.
class ControlLoop {
 public:
  ControlLoop(EngineOptions options, std::unique_ptr<ControlTransport> transport, CallTable* table,
              MemberTable* members, CompletionThread* completions);
  ~ControlLoop();

  // Where the backend reports to. The backend is given before Run.
  CompletionSink Sink();
  void SetBackend(std::unique_ptr<CollectiveBackend> backend) { backend_ = std::move(backend); }

  // Instead of Run, where its thread could not be started.
  void DropBackend(const Status& why);

  // Until a shutdown is through. Then the backend and the transport are closed, and every call has
  // been handed to the completion thread.
  void Run();

  // The table holds something new. Any thread.
  void NotifySubmission() { WakeIfAsleep(); }
  // This rank leaves; Run returns soon. Any thread.
  void RequestShutdown();

  // Any thread, while Run goes on or after it.
  struct Counts {
    int64_t control_wakeups = 0;
    int64_t data_wakeups = 0;
    int64_t bytes_sent = 0;
    int64_t plans = 0;
    int64_t collectives = 0;
    int64_t tensors = 0;
    int64_t forwarded = 0;
    int64_t cache_hits = 0;
  };
  Counts counts() const;

 private:
  struct Inbox {
    std::vector<Completion> completions;
    bool shutdown = false;
  };

  void OnCompletion(Completion completion);
  void WakeIfAsleep();
  bool InboxEmpty() const;
  void Sleep(std::vector<ControlEvent>* events);
  EngineEvents Gather(std::vector<ControlEvent> control);
  void Apply(EngineEffects effects);
  void StartPlan(const PlanRun& run);
  Status RunHere(const Plan& plan, const std::vector<RunningCall*>& calls);
  void Count(const std::vector<TensorBuffer>& buffers, size_t calls);
  void Leave();

  const Rank rank_;
  Engine engine_;
  CallTable* const table_;
  MemberTable* const members_;
  CompletionThread* const completions_;
  const std::unique_ptr<ControlTransport> transport_;
  std::unique_ptr<CollectiveBackend> backend_;

  // True from just before the control thread looks at its queues for the last time until it is
  // awake: whoever adds to a queue and finds it true has to wake the thread.
  std::atomic<bool> asleep_{false};

  mutable std::mutex inbox_mutex_;  // guards inbox_ and leaving_
  Inbox inbox_;
  bool leaving_ = false;  // a shutdown was asked for; stays

  mutable std::mutex counts_mutex_;  // guards counts_ and the end of backend_
  Counts counts_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_CONTROL_LOOP_H_
