#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_RUNNING_PLANS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_RUNNING_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/plan.h"

namespace tfring {

// Only a plan on a device becomes kLaunched, and only a batch of a locked schedule kVoid or
// kParked. A plan changes its state at most once: from kRunning.
enum class PlanState {
  kRunning,   // the backend has it
  kLaunched,  // a device has all of its work: the sequencer no longer counts it
  kVoid,      // the backend has it, but not all ranks have entered it: it has to come back recalled
  kParked,    // the backend has returned it, recalled or failed, or never got it: the end of the
              // locked schedule decides whether its calls wait again
};

// The plans that the backend has, and the calls that have left the Negotiator with a plan, until
// each has its one result. The table in engine.h shows the states of a call. Part of the engine.
class RunningPlans {
 public:
  struct Plan {
    std::vector<CallId> calls;
    std::string what;  // "'x' and 3 more"
    PlanState state = PlanState::kRunning;
  };

  void Add(uint64_t sequence, Plan plan) { plans_[sequence] = std::move(plan); }
  // Aborts the process if the backend does not have this plan.
  Plan& At(uint64_t sequence);
  Plan Take(uint64_t sequence);
  // The plan that has run the longest. Requires !empty().
  const Plan& first() const { return plans_.begin()->second; }
  bool empty() const { return plans_.empty(); }

  // Calls without a result.
  size_t in_flight() const;
  bool holds_calls() const { return !held_.empty(); }

  // Ends these calls. A call whose plan is being recalled ends only when the backend has returned
  // that plan.
  void EndCalls(const std::vector<CallId>& calls, const Status& status);
  // The plan of these calls broke: they end with the generation, or now if it is over.
  void Hold(const std::vector<CallId>& calls);
  // The generation is over.
  void EndHeld(const Status& why);

  // A plan of a locked schedule failed. The end of the schedule decides whether its calls wait
  // again.
  void Park(uint64_t sequence, Plan plan);
  // A locked schedule is over. The calls of these plans wait in the negotiator again; the other
  // plans that are parked have failed.
  void Recall(const std::vector<uint64_t>& sequences);
  // The backend no longer uses memory of the calls of this plan.
  void Release(uint64_t sequence);
  void EndParked(const Status& why);

  // Hands over the results since the last call.
  std::vector<std::pair<CallId, Status>> TakeResults() { return std::exchange(results_, {}); }

 private:
  std::map<uint64_t, Plan> plans_;  // by sequence
  std::vector<CallId> held_;
  Status over_;  // not ok: why the generation is over
  // Recalled calls: they wait again while the backend still has their memory. By call: the old
  // plan.
  std::map<CallId, uint64_t> busy_;
  std::vector<std::pair<CallId, Status>> delayed_;  // results of calls in busy_
  std::vector<std::pair<CallId, Status>> results_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_RUNNING_PLANS_H_
