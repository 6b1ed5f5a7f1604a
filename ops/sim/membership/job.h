#ifndef TFRING_OPS_SIM_MEMBERSHIP_JOB_H_
#define TFRING_OPS_SIM_MEMBERSHIP_JOB_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/membership/coordinator.h"
#include "ops/sim/membership/job_checker.h"
#include "ops/sim/membership/process.h"
#include "ops/sim/random.h"
#include "ops/sim/virtual_clock.h"

namespace tfring::sim {

// After this silence of a host's agent the launcher takes all processes there for ended.
inline constexpr Duration kAgentLease = 5 * kSecond;

struct JobReport {
  std::vector<std::string> failures;
  std::vector<std::string> trace;  // of the run, if requested
  int64_t generations = 0;
  int64_t joins = 0;
  int64_t commits = 0;
  int64_t fallbacks = 0;
  int64_t publications = 0;
  int64_t faults = 0;
  std::array<int64_t, membership::kNumWorkerStates> kills{};  // by the state of the killed worker
  int64_t events = 0;
  bool finished = false;  // with exit code 0
  TimePoint end = 0;
};

// An elastic job in one process on a virtual clock: the real Coordinator, an agent on each host,
// the network, and processes with the real Worker. A run depends only on its seed. Lives for one
// run; used by one thread.
class Job {
 public:
  explicit Job(const JobOptions& options);

  JobReport Run();

  // For processes.
  const Scenario& scenario() const { return scenario_; }
  const JobOptions& options() const { return options_; }
  JobChecker* checker() { return &checker_; }
  TimePoint now() const { return clock_.Now(); }
  void After(Duration delay, std::function<void()> action) {
    clock_.After(delay, std::move(action));
  }
  void Trace(const std::string& text);
  void SendReport(membership::WorkerId from, const membership::Report& report);
  void SendToPeer(membership::WorkerId from, membership::WorkerId to,
                  std::function<void(Process*)> action);
  // Returns whether the process would refuse a connection.
  bool IsGone(membership::WorkerId worker);
  // A member has left this generation, and the others notice. `suspect` is to blame.
  void OnBroken(membership::Generation generation, membership::WorkerId by,
                membership::WorkerId suspect);
  // Returns true if a fault waited for this state and has killed the process.
  bool OnState(membership::WorkerId worker, membership::WorkerState state);
  // As OnState, for a rank 0 that has sent the results of a step to half of the members.
  bool OnHalfOfResults(membership::WorkerId worker);
  void OnExit(membership::WorkerId worker, int code);

 private:
  // job.cc
  void StepCoordinator(membership::CoordinatorEvents events);
  void Act(membership::CoordinatorEffects effects);
  bool FindsHost(const std::string& host) const;  // discovery finds the host
  void NoteProposal(const membership::Record& record);
  void NoteDismissal(membership::WorkerId worker);
  void NoteEviction(membership::WorkerId worker, const std::string& reason);
  void NoteKill(membership::WorkerId worker);
  void SendCommand(membership::WorkerId to, const membership::Command& command);
  void Transmit(membership::WorkerId worker, bool up, std::function<void()> deliver);
  void PlanTick();
  void Watch();
  bool Ended() const;
  Process* Find(membership::WorkerId worker);
  const std::string& HostOf(membership::WorkerId worker);
  bool StoreReaches(const std::string& host) const;
  bool StoreReaches(membership::WorkerId worker);
  bool PeersReach(membership::WorkerId a, membership::WorkerId b);
  bool AgentAnswers(const std::string& host) const;
  // Runs the action when the agent of this host and the coordinator can reach each other.
  void WithAgent(const std::string& host, std::function<void()> action);
  void FlushAgents();
  void SayEnd(membership::WorkerId worker, int code, const std::string& cause);

  // job_faults.cc
  void Inject(const PlannedFault& fault);
  void InjectOnProcess(const PlannedFault& fault);
  void InjectOnNetwork(const PlannedFault& fault);
  void InjectOnHost(const PlannedFault& fault);
  void Undo(const PlannedFault& fault, std::function<void()> undo);
  void KillProcess(Process* process, int code, const std::string& cause);
  void StopProcess(Process* process, const PlannedFault& fault);
  void NoteCut(membership::WorkerId by, membership::WorkerId other, Duration notice);
  void HostDown(const std::string& host);
  void KillAllOf(const std::string& host);
  void IsolateHost(const std::string& host, const PlannedFault& fault);
  void PauseHost(const std::string& host, const PlannedFault& fault);
  void MissAgent(const std::string& host);
  void CutOff(membership::WorkerId worker);
  void CutOffHost(const std::string& host);
  void StopCoordinator(const PlannedFault& fault);
  void KillCoordinator(const PlannedFault& fault);
  void StartCoordinator();
  void TellOfHost(const std::string& host);
  void Attach(membership::WorkerId worker);
  void Disturb();
  std::vector<Process*> Members();
  Process* PickMember();

  const JobOptions options_;
  const Scenario scenario_;
  VirtualClock clock_;
  Random random_;
  JobChecker checker_;
  std::optional<membership::Coordinator> coordinator_;
  uint64_t tick_ = 0;  // the last planned tick
  std::map<membership::WorkerId, std::unique_ptr<Process>> processes_;
  std::map<membership::Generation, membership::Record> records_;
  std::set<membership::Generation> broken_;
  std::map<std::pair<membership::WorkerId, bool>, TimePoint> last_arrivals_;
  struct Heard {
    uint64_t sequence = 0;
    TimePoint when = 0;
  };
  std::map<membership::WorkerId, Heard> heard_;  // the newest report that arrived
  std::set<membership::WorkerId> dismissed_;     // told to leave, or excluded
  std::set<membership::WorkerId> ended_;         // workers whose end the coordinator knows
  std::set<membership::WorkerId> asked_to_leave_;

  std::vector<membership::HostSlots> hosts_;  // the hosts that discovery finds
  std::set<std::pair<membership::WorkerId, membership::WorkerId>> cut_pairs_;
  std::set<membership::WorkerId> cut_from_store_;
  std::set<membership::WorkerId> cut_off_;  // reported as cut off since their last report
  std::set<std::string> isolated_;
  std::set<std::string> down_;
  std::set<std::string> paused_;
  int life_ = 0;         // number of the coordinator's life
  TimePoint begun_ = 0;  // when the coordinator started
  // The hosts of all workers that the coordinator has started or agents have reported.
  std::map<membership::WorkerId, std::string> known_;
  bool coordinator_stopped_ = false;
  std::vector<membership::CoordinatorEvents> held_events_;  // while the coordinator is stopped
  int stores_away_ = 0;
  int lossy_ = 0;
  bool was_lossy_ = false;
  int active_faults_ = 0;
  int holds_ = 0;  // of these, kHold
  TimePoint disturbed_ = -1000 * kSecond;
  std::vector<std::pair<std::string, std::function<void()>>> for_agents_;
  std::vector<membership::WorkerState> kill_in_phase_;
  int kills_in_step_ = 0;
  int new_hosts_ = 0;

  bool over_ = false;
  int exit_code_ = 0;
  TimePoint over_at_ = 0;
  int64_t last_commits_ = 0;
  TimePoint progress_at_ = 0;
  int64_t faults_ = 0;
  std::array<int64_t, membership::kNumWorkerStates> kills_{};
  std::vector<std::string> trace_;
};

// Returns the command that repeats a run.
std::string ReplayLine(const JobOptions& options);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_MEMBERSHIP_JOB_H_
