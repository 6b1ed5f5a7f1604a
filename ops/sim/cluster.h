#ifndef TFRING_OPS_SIM_CLUSTER_H_
#define TFRING_OPS_SIM_CLUSTER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/sim/checker.h"
#include "ops/sim/data_plane.h"
#include "ops/sim/network.h"
#include "ops/sim/virtual_clock.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

enum class Fault {
  kNone,
  kDeath,    // a random rank dies at a random moment
  kHang,     // a random rank stops at a random moment; its sockets stay open
  kGoodbye,  // a random rank shuts down at a random moment, with calls in flight
  kResize,   // all ranks shut down at about the same time: an elastic job continues with others
};

struct SimOptions {
  int ranks = 3;
  uint64_t seed = 1;
  std::string workload = "triangle";
  Fault fault = Fault::kNone;
};

struct SimReport {
  std::vector<std::string> failures;
  int64_t plans = 0;
  int64_t results = 0;
  int64_t aborted = 0;                           // aborted calls of these
  int64_t locked = 0;                            // batches of locks, summed over ranks
  int64_t recalled = 0;                          // recalled batches of these
  int64_t locks = 0;                             // locks that rank 0 has made
  std::array<int64_t, kUnlockCauses> unlocks{};  // by cause; ends that rank 0 has seen
  int64_t launched = 0;                          // plans on devices, summed over ranks
  int64_t early = 0;                             // results that came at the launch
  int64_t broken_groups = 0;                     // plans that broke on a device, summed over ranks
  int64_t events = 0;
  int64_t max_frames = 0;  // most frames in flight in one direction
  bool faulted = false;    // the fault happened before the work was done
  bool in_lock = false;    // as `faulted`, while the rank entered batches of a lock
  TimePoint end = 0;       // virtual
};

// One run of a simulated job of many ranks: real engines between simulated users, a simulated
// control network and a simulated data plane, all in one thread on virtual time. The engine takes
// events and the time and returns effects, so a rank is a small loop: collect events, call
// Engine::Step after a random delay, carry out the effects. The checker watches each submission,
// plan and result. A run depends only on its options. Used by one thread; lives for one run.
class Cluster {
 public:
  explicit Cluster(const SimOptions& options);
  SimReport Run();

 private:
  struct User {
    size_t attempt = 0;
    size_t phase = 0;    // number of the phase in this attempt
    size_t awaited = 0;  // calls of this phase without a result
    uint64_t began = 0;  // the process set's attempt when this one began
    bool failed = false;
    bool done = false;
  };
  struct Node {
    std::unique_ptr<Engine> engine;
    std::vector<User> users;
    std::map<CallId, size_t> callers;               // user of each call without a result
    std::map<CallId, TimePoint> made_at;            // of these calls
    std::map<uint64_t, std::vector<CallId>> plans;  // plans whose memory the data plane uses
    std::set<uint64_t> unlaunched;                  // plans of these that are not launched
    std::set<CallId> done_early;                // calls with a result whose memory is still in use
    std::map<ProcessSetId, uint64_t> attempts;  // present attempt of this rank, by set
    EngineEvents pending;
    bool step_planned = false;
    bool alive = true;
    bool done = false;  // all its scripts have ended
    bool leaving = false;
    bool closed = false;      // its shutdown has finished
    bool broken = false;      // its engine has learned that a plan failed
    bool awaits_end = false;  // result of its last step
    int64_t steps = 0;
    TimePoint wake_at = kNever;
  };

  void BuildNodes();
  void PlanFault();
  void DescribeDeadlock();

  // The simulated users.
  void StartAttempt(Rank rank, size_t user);
  void StartPhase(Rank rank, size_t user);
  void EndAttempt(Rank rank, size_t user);
  void FailStep(Rank rank, size_t user, size_t attempt);
  void SubmitCall(Rank rank, size_t user, const Call& call);
  void OnCallEnded(Rank rank, size_t user);
  void OnUserDone(Rank rank, size_t user);
  void OnError(Rank rank, size_t user, const Call& call, const Status& status);
  void LeaveIfAllDone();
  void Leave(Rank rank);
  // True if users shut down when a call is cancelled. In workloads with joins they must: without
  // the cancelled join the rest of a user's script does not fit the scripts of the others.
  bool UsersLeaveOnCancel() const {
    const bool joins = options_.workload != "subsets" && options_.workload != "triangle";
    return options_.fault == Fault::kResize || (options_.fault == Fault::kGoodbye && joins);
  }

  // The simulated process around the engine.
  void PlanStep(Rank rank);
  void Wake(Rank rank, TimePoint planned);
  void SetAlarm(Rank rank);
  void Step(Rank rank);
  void Apply(Rank rank, EngineEffects effects);
  void StartPlan(Rank rank, const PlanRun& run);
  void OnCompletion(Rank rank, Completion completion);
  void OnLaunched(Rank rank, uint64_t sequence);
  void ReleaseCall(Rank rank, CallId id, const Status& status);
  void DeliverResult(Rank rank, CallId id, const Status& status);
  void CheckNode(Rank rank);
  bool NothingFollows(Rank rank, const EngineEvents& events) const;
  void CheckFrames(Rank rank, bool locked, const EngineEffects& effects);
  void CheckCancelIsNeeded(Rank rank, CallId id, const Status& status);
  void InjectFault();

  const SimOptions options_;
  Random random_;
  VirtualClock clock_;
  Workload workload_;
  Checker checker_;
  Network network_;
  DataPlane data_plane_;
  std::vector<Node> nodes_;
  size_t running_ = 0;  // nodes that are alive and not closed
  SimReport report_;
  CallId next_id_ = 1;

  Rank faulty_rank_ = kNoRank;
  int64_t fault_step_ = -1;     // the faulty rank dies in this step of its engine
  int64_t fault_in_lock_ = -1;  // steps in a lock that the faulty rank still takes
  bool faulted_ = false;
  TimePoint faulted_at_ = 0;
  bool closing_ = false;  // all ranks are shutting down
};

// Returns the command that repeats a run.
std::string ReplayLine(const SimOptions& options);
const char* FaultName(Fault fault);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CLUSTER_H_
