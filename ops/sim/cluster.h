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
  kHang,     // it stops at a random moment, and its sockets stay open
  kGoodbye,  // it shuts down at a random moment, with calls under way
  kResize,   // all do at about the same time: an elastic job goes on with other ranks
};

// What the simulation does wrong on purpose, to show that the checker finds it.
enum class Sabotage {
  kNone,
  kSwapPlans,     // one rank runs two plans in the other order
  kAlterPlan,     // one rank runs a plan with another root
  kDropResult,    // one result gets lost
  kRepeatResult,  // one result comes twice
  kLoseFrame,     // the network loses a frame
  kIgnoreVoid,    // batches of a lock run although not all ranks have entered them
  kEnterLate,     // a rank tells one batch less than it has entered
  kAlterLock,     // one rank gets a lock with two batches in the other order
  kShiftUnlock,   // one rank learns of a wrong end of a lock
  kBlameOther,    // one rank learns that a lock ended because of another rank than it did
  kSkipVoid,      // one rank does not say that it does not enter a batch
  kEndAtLaunch,   // one plan counts as ended when a device has its work
};

struct SimOptions {
  int ranks = 3;
  uint64_t seed = 1;
  std::string workload = "triangle";
  Fault fault = Fault::kNone;
  Sabotage sabotage = Sabotage::kNone;
  bool check_order = true;
};

struct SimReport {
  std::vector<std::string> failures;
  int64_t plans = 0;
  int64_t results = 0;
  int64_t aborted = 0;                           // of these
  int64_t locked = 0;                            // batches of locks, counted on each rank
  int64_t recalled = 0;                          // of these
  int64_t locks = 0;                             // that rank 0 has made
  std::array<int64_t, kUnlockCauses> unlocks{};  // by cause, those that rank 0 has seen the end of
  int64_t launched = 0;                          // plans on devices, counted on each rank
  int64_t early = 0;                             // results that came with them
  int64_t broken_groups = 0;  // plans that broke on a device, counted on each rank
  int64_t events = 0;
  int64_t max_frames = 0;  // under way in one direction at one time
  Network::Load busiest;   // the rank with the most messages
  bool faulted = false;    // the fault happened before the work was done
  bool in_lock = false;    // the same, while the rank entered batches of a lock
  bool sabotaged = false;  // the sabotage found its moment
  TimePoint end = 0;       // virtual
};

// One run of a simulated job of many ranks: real engines between simulated users, a simulated
// control network and a simulated data plane, all in one thread on virtual time. The engine takes
// events and the time and returns effects, so that a rank is little more than a loop: collect
// events, call Engine::Step after a random delay, carry out the effects. The checker watches every
// submission, plan and result. A run depends on its options only. One thread; lives for one run.
class Cluster {
 public:
  explicit Cluster(const SimOptions& options);
  SimReport Run();

 private:
  struct User {
    size_t attempt = 0;
    size_t phase = 0;    // of this attempt
    size_t awaited = 0;  // calls of this phase without a result
    uint64_t began = 0;  // the rank's attempt of the process set when this one began
    bool failed = false;
    bool done = false;
  };
  struct Node {
    std::unique_ptr<Engine> engine;
    std::vector<User> users;
    std::map<CallId, size_t> callers;               // users, of calls without a result
    std::map<CallId, TimePoint> made_at;            // of these calls
    std::map<uint64_t, std::vector<CallId>> plans;  // whose memory the data plane uses
    std::set<uint64_t> unlaunched;                  // of these
    std::set<CallId> done_early;                    // their memory is used, and they have a result
    std::map<ProcessSetId, uint64_t> attempts;      // in which this rank is
    EngineEvents pending;
    bool step_planned = false;
    bool alive = true;
    bool done = false;  // its scripts have ended
    bool leaving = false;
    bool closed = false;      // its shutdown has finished
    bool broken = false;      // its engine has been told that a plan failed
    bool awaits_end = false;  // as its last step said
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
  // True if users shut down when a call is cancelled. Where there are joins they must: without the
  // join that was cancelled, the rest of their script does not fit that of the others.
  bool UsersLeaveOnCancel() const {
    return (options_.workload == "random" || options_.workload == "withdrawals" ||
            options_.workload == "locked" || options_.workload == "steady") &&
           (options_.fault == Fault::kGoodbye || options_.fault == Fault::kResize);
  }

  // The simulated process around the engine.
  void PlanStep(Rank rank);
  void Wake(Rank rank, TimePoint planned);
  void SetAlarm(Rank rank);
  void Step(Rank rank);
  void Apply(Rank rank, EngineEffects effects);
  void RunPlan(Rank rank, PlanRun run);
  void StartPlan(Rank rank, const PlanRun& run);
  void StartHeldPlans(Rank rank);
  void OnCompletion(Rank rank, Completion completion);
  void OnLaunched(Rank rank, uint64_t sequence);
  void ReleaseCall(Rank rank, CallId id, const Status& status);
  void DeliverResult(Rank rank, CallId id, const Status& status);
  void CheckNode(Rank rank);
  // cluster_checks.cc
  bool NothingFollows(Rank rank, const EngineEvents& events) const;
  void CheckFrames(Rank rank, bool locked, const EngineEffects& effects);
  void SabotageLock(Rank rank, Rank to, std::string* frame);
  void SendFrame(Rank rank, Rank to, std::string frame);
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
  bool closing_ = false;  // all ranks shut down now
  bool sabotaged_ = false;
  std::vector<PlanRun> held_plans_;                        // by Sabotage::kSwapPlans
  std::pair<Rank, uint64_t> ended_at_launch_{kNoRank, 0};  // by Sabotage::kEndAtLaunch
};

// The command that repeats a run.
std::string ReplayLine(const SimOptions& options);
const char* FaultName(Fault fault);
const char* SabotageName(Sabotage sabotage);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CLUSTER_H_
