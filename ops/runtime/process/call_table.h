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

// A call that has left the table. Its owner runs `done` with this status, if it has not run yet,
// and then destroys the call.
struct FinishedCall {
  LocalCall call;
  Status status;
  std::vector<std::shared_ptr<void>> scratch = {};
};

// The table's data of a running call. The control thread may change it between Begin and the
// submission of the plan. The thread that reports the end of the plan may set `local_failure`
// before it reports.
struct RunningCall {
  LocalCall call;
  std::vector<Shape> shapes;                   // of kinds with allocates_output
  Status local_failure;                        // not ok: the outcome even if the plan succeeds
  std::vector<std::shared_ptr<void>> scratch;  // outputs that are thrown away
};

// A call of a plan with NaN or infinities in its inputs.
struct BadCall {
  CallId id = 0;
  std::string name;
  ProcessSetId process_set = kGlobalProcessSet;
  std::string call_site;  // empty if nothing is recorded
  // The number of this call among the calls of its name, from 1; 0 if nothing is recorded.
  uint32_t invocation = 0;
  std::vector<BadValues> tensors;  // `buffer` counts within the call
};

// The accepted calls of this rank that have no outcome yet: buffers, `done`, and the names in
// flight. Shared by the threads that call Enqueue, the control thread and the backend's threads;
// the engine has the requests, decides, and knows calls by id. The first thread that wants to end a
// call takes it out and alone runs its `done`, without the mutex. A call with `early` leaves when
// its plan is launched, which frees its name; what keeps its memory stays until the plan has ended.
// Records what happens to calls. Thread-safe; lives for one generation.
class CallTable {
 public:
  // `recorder` may be null.
  explicit CallTable(Recorder* recorder = nullptr) : recorder_(recorder) {}

  // Accepts a call of this attempt and moves from the first two arguments. On an error they stay:
  // InvalidArgument if the name is in flight in this process set; after CloseAdmission its status.
  Status Add(Request* request, LocalCall* call, uint64_t attempt = 0);

  // Appends the calls accepted since the last Drain to `out`, in order.
  void Drain(std::vector<Submission>* out);
  bool HasSubmissions() const;

  // Returns the calls of a plan, which run from now on. The pointers stay valid until the plan is
  // taken. `now` is for the record, here and below.
  std::vector<RunningCall*> Begin(uint64_t sequence, const std::vector<CallId>& ids,
                                  const std::vector<PlanItem>& items = {},
                                  TimePoint now = MonotonicNow());

  // For the record: when the ranks entered the plan, which was a batch of a lock.
  void NoteAsked(uint64_t sequence, const AskTimes& asked);

  // After the launch of the plan: takes its calls with `early`.
  std::vector<FinishedCall> TakeLaunched(uint64_t sequence, TimePoint now = MonotonicNow());
  // After success of the plan: takes its calls, and the memory of those that TakeLaunched took.
  std::vector<FinishedCall> TakePlan(uint64_t sequence, TimePoint now = MonotonicNow());
  // After a failure of the plan: takes the memory of the calls that TakeLaunched took. The other
  // calls stay until the engine decides how they end.
  std::vector<FinishedCall> ForgetPlan(uint64_t sequence);

  // Returns the calls of a running plan to which these inputs belong.
  std::vector<BadCall> Locate(uint64_t sequence, const std::vector<BadValues>& found) const;
  // Gives the call, if it is still there, this outcome even if its plan succeeds.
  void FailLocally(CallId id, Status why);

  // Takes one call, if it is still there, or all calls.
  std::optional<FinishedCall> Take(CallId id, Status status);
  std::vector<FinishedCall> TakeAll(const Status& status);
  // Takes the calls that no running plan uses. The engine must not be asked about them afterwards.
  std::vector<FinishedCall> TakeWaiting(const Status& status);

  // The process sets with calls in the table, each with the newest attempt that has one.
  std::map<ProcessSetId, uint64_t> AttemptsInUse() const;

  // Makes Add refuse with `why`.
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
