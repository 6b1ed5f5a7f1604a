#ifndef TFRING_OPS_RUNTIME_PROCESS_CALL_TABLE_H_
#define TFRING_OPS_RUNTIME_PROCESS_CALL_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/recorder/recorder.h"

namespace tfring {

// A call that has left the table: its `done`, if it has not run yet, is to be run with this status.
// Then all of it is to be destroyed.
struct FinishedCall {
  LocalCall call;
  Status status;
  std::vector<std::shared_ptr<void>> scratch = {};
};

// What the table keeps of a call. The control thread may change it from Begin until it submits the
// plan, the thread that reports the end of the plan `local_failure` before it does.
struct RunningCall {
  LocalCall call;
  std::vector<Shape> shapes;                   // of kinds with allocates_output
  Status local_failure;                        // not ok: the outcome even if the plan succeeds
  std::vector<std::shared_ptr<void>> scratch;  // outputs that are thrown away
};

// A call of a plan of which inputs hold NaN or infinities.
struct BadCall {
  CallId id = 0;
  std::string name;
  ProcessSetId process_set = kGlobalProcessSet;
  std::string call_site;           // empty, and 0, where nothing is recorded
  uint32_t invocation = 0;         // the how manieth call of this name
  std::vector<BadValues> tensors;  // `buffer` counts within the call
};

// Every call of this rank that was accepted and has no outcome yet: its buffers, its `done`, and
// its name while it is in flight. (The engine has the requests and decides; it knows calls by id.)
// It is what the threads that call Enqueue, the control thread and the backend's threads share. A
// call is taken out exactly once, by the first thread that wants to end it, and only that thread
// may run `done`, after the lock is released. A call with `early` leaves when its plan is launched,
// and its name is free from then on; what keeps its memory stays until the plan has ended.
// What happens to calls is recorded here, under the lock. Thread-safe; lives for one generation.
class CallTable {
 public:
  // Null: nothing is recorded.
  explicit CallTable(Recorder* recorder = nullptr) : recorder_(recorder) {}

  // Accepts a call of this attempt and moves the first two arguments here. InvalidArgument, and the
  // arguments stay, for a name that is in flight in this process set already; after CloseAdmission
  // its status.
  Status Add(Request* request, LocalCall* call, uint64_t attempt = 0);

  // Moves the calls that were accepted since the last Drain to `out`, in order.
  void Drain(std::vector<Submission>* out);
  bool HasSubmissions() const;

  // The calls of a plan, running from now on. The pointers stay valid until the plan is taken.
  // `items`, of the plan, may be left out. `now` is for the record, here and below.
  std::vector<RunningCall*> Begin(uint64_t sequence, const std::vector<CallId>& ids,
                                  const std::vector<PlanItem>& items = {},
                                  TimePoint now = MonotonicNow());

  // The plan was a batch of a lock, and this is when ranks have entered it. For the record.
  void NoteAsked(uint64_t sequence, const AskTimes& asked);

  // The plan was launched: takes its calls with `early`.
  std::vector<FinishedCall> TakeLaunched(uint64_t sequence, TimePoint now = MonotonicNow());
  // The plan succeeded: takes its calls, and what is left of those that TakeLaunched took.
  std::vector<FinishedCall> TakePlan(uint64_t sequence, TimePoint now = MonotonicNow());
  // The plan failed: its calls stay until the engine has decided how they end. Takes what is left
  // of those that TakeLaunched took.
  std::vector<FinishedCall> ForgetPlan(uint64_t sequence);

  // The calls of a running plan to which these inputs belong.
  std::vector<BadCall> Locate(uint64_t sequence, const std::vector<BadValues>& found) const;
  // The call, if it is still there, has this outcome even if its plan succeeds.
  void FailLocally(CallId id, Status why);

  // Takes one call, if it is still there; or all.
  std::optional<FinishedCall> Take(CallId id, Status status);
  std::vector<FinishedCall> TakeAll(const Status& status);
  // All that no running plan uses. The engine, which knows them too, is not asked any more.
  std::vector<FinishedCall> TakeWaiting(const Status& status);

  // The process sets that have a call in the table, with the newest attempt of theirs that has one.
  std::map<ProcessSetId, uint64_t> AttemptsInUse() const;

  // From now on Add refuses with `why`.
  void CloseAdmission(Status why);

 private:
  struct Accepted {
    std::string key;
    ProcessSetId process_set = kGlobalProcessSet;
    uint64_t attempt = 0;
    uint64_t record = 0;  // its number at the recorder
    RunningCall running;
  };
  struct RunningPlan {
    std::vector<CallId> calls;
    std::vector<FinishedCall> launched;  // of these; without `done`, which has run
  };
  FinishedCall Remove(std::unordered_map<CallId, Accepted>::iterator it, Status status,
                      TimePoint now);

  Recorder* const recorder_;
  mutable std::mutex mutex_;  // guards everything below
  Status closed_;
  CallId next_id_ = 1;
  std::unordered_map<CallId, Accepted> calls_;
  std::unordered_set<std::string> names_;  // keys of calls_: "process set:name"
  std::vector<Submission> submissions_;    // that Drain has not taken yet
  std::map<uint64_t, RunningPlan> plans_;  // by sequence
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_CALL_TABLE_H_
