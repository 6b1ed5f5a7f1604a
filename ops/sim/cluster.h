#ifndef TFRING_OPS_SIM_CLUSTER_H_
#define TFRING_OPS_SIM_CLUSTER_H_

#include <cstdint>
#include <memory>
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
  kHang,     // it stops, and its sockets stay open
  kGoodbye,  // it shuts down in the middle
};

// What the cluster does wrong on purpose, to show that the checks can fail.
enum class Sabotage {
  kNone,
  kSwapPlans,     // one rank runs two plans in the other order
  kAlterPlan,     // one rank runs a plan with another root
  kDropResult,    // one result gets lost
  kRepeatResult,  // one result comes twice
  kLoseFrame,     // the network loses a frame
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
  int64_t events = 0;
  int64_t max_frames = 0;  // under way in one direction at one time
  bool faulted = false;    // the fault happened before the work was done
  bool sabotaged = false;  // the sabotage found its moment
  TimePoint end = 0;       // virtual
};

// One run of many ranks: real engines, simulated users, network and data plane. Everything follows
// from the options. One thread; lives for one run.
class Cluster {
 public:
  explicit Cluster(const SimOptions& options);
  SimReport Run();

 private:
  struct Node {
    std::unique_ptr<Engine> engine;
    EngineEvents pending;
    bool step_planned = false;
    bool alive = true;
    bool done = false;  // its script has ended
    bool leaving = false;
    bool closed = false;  // it has left in good order
    bool broken = false;  // it knows that a plan of its own failed
    size_t phase = 0;     // of its script
    size_t awaited = 0;   // calls of this phase without a result
    int64_t steps = 0;
    TimePoint wake_at = kNever;
  };

  void BuildNodes();
  void PlanFault();
  bool Ended() const;
  void DescribeDeadlock();

  // The simulated user.
  void StartPhase(Rank rank);
  void SubmitCall(Rank rank, const Call& call);
  void OnCallEnded(Rank rank);
  void OnScriptEnded(Rank rank);
  void LeaveIfAllDone();
  void Leave(Rank rank);
  // A user whose join is cancelled has no common ground with the others any more, and leaves.
  bool GivesUp() const {
    return options_.workload == "random" && options_.fault == Fault::kGoodbye;
  }

  // The simulated process around the engine.
  void PlanStep(Rank rank);
  void Wake(Rank rank, TimePoint planned);
  void SetAlarm(Rank rank);
  void Step(Rank rank);
  void Apply(Rank rank, EngineEffects effects);
  void RunPlan(Rank rank, PlanRun run);
  void HandOver(Rank rank, const PlanRun& run);
  void ReleaseKeptBack(Rank rank);
  void PassResult(Rank rank, CallId id, const Status& status);
  void CheckNode(Rank rank);
  void CheckBystander(Rank rank, CallId id, const Status& status);
  void Strike();

  const SimOptions options_;
  Random random_;
  VirtualClock clock_;
  Workload workload_;
  Checker checker_;
  Network network_;
  DataPlane data_plane_;
  std::vector<Node> nodes_;
  CallId next_id_ = 1;

  Rank victim_ = kNoRank;
  int64_t strike_step_ = -1;  // the victim dies in this step
  bool struck_ = false;
  TimePoint struck_at_ = 0;
  bool closing_ = false;  // everybody has been told to leave
  bool sabotaged_ = false;
  std::vector<PlanRun> kept_back_;  // by Sabotage::kSwapPlans
};

// The command that repeats a run.
std::string ReplayLine(const SimOptions& options);
const char* FaultName(Fault fault);
const char* SabotageName(Sabotage sabotage);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CLUSTER_H_
