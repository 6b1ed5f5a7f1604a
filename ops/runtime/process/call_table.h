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

#include "ops/runtime/base/status.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// A call that has left the table: its `done` is to be run with this status.
struct FinishedCall {
  LocalCall entry;
  Status status;
};

// A call whose plan is about to run. The control thread may change it until it submits the plan.
struct RunningCall {
  LocalCall entry;
  std::vector<Shape> shapes;                     // where AllocatesOutput
  Status local_failure;                          // not ok: the outcome even if the plan succeeds
  std::vector<std::unique_ptr<char[]>> scratch;  // outputs that nobody wants
};

// The one lock between the threads that call Enqueue and the control thread: every call that was
// accepted and has no outcome yet. A call is taken out exactly once, by whoever comes first, and
// only who takes it may run `done`, after the lock is released. Thread-safe; lives as long as the
// runtime of one generation.
class CallTable {
 public:
  // Accepts the call and moves it here. InvalidArgument for a name that is in flight already; the
  // status of CloseAdmission after that. Both arguments are untouched when refused.
  Status Add(Request* request, LocalCall* entry);

  // Moves the requests that were accepted since the last Drain to `out`, in order.
  void Drain(std::vector<std::pair<CallId, Request>>* out);
  bool HasSubmissions() const;

  // The calls of a plan, running from now on. The pointers stay valid until the plan is taken.
  std::vector<RunningCall*> Begin(uint64_t sequence, const std::vector<CallId>& ids);

  // The plan succeeded: takes its calls.
  std::vector<FinishedCall> TakePlan(uint64_t sequence);
  // It did not: its calls stay until the engine has decided how they end.
  void ForgetPlan(uint64_t sequence);

  // Takes one call, if it is still there; or all.
  std::optional<FinishedCall> Take(CallId id, Status status);
  std::vector<FinishedCall> TakeAll(const Status& status);

  // From now on Add refuses with `why`.
  void CloseAdmission(Status why);

 private:
  struct Call {
    std::string key;
    RunningCall running;
  };
  FinishedCall Remove(std::unordered_map<CallId, Call>::iterator it, Status status);

  mutable std::mutex mutex_;  // guards everything below
  Status closed_;
  CallId next_id_ = 1;
  std::unordered_map<CallId, Call> calls_;
  std::unordered_set<std::string> names_;  // of calls_, with their process sets
  std::vector<std::pair<CallId, Request>> submissions_;
  std::map<uint64_t, std::vector<CallId>> plans_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_CALL_TABLE_H_
