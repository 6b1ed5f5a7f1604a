#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/membership/coordinator_state.h"
#include "ops/runtime/membership/hosts.h"
#include "ops/runtime/membership/messages.h"
#include "ops/runtime/membership/suspects.h"

namespace tfring::membership {

struct CoordinatorOptions {
  int np = 1;  // the first generation waits up to `start_wait` for this number of ranks
  int min_np = 1;
  int max_np = 1;
  int spares = 0;             // workers beyond max_np, which are started and wait
  WorkerId first_worker = 1;  // a job that starts again uses none of its old ids
  Duration start_wait = 60 * kSecond;
  // How long a process may take to be ready. Also how long a worker may be silent if its launcher
  // would report its end.
  Duration start_limit = 120 * kSecond;
  // How long a worker may be silent if no launcher reports its end, or if others have lost it.
  Duration lease = 5 * kSecond;
  // How long a worker that still reports may take to stop, and to connect. A worker may publish for
  // one lease after its last answer, so stop_limit is no shorter than the lease.
  Duration stop_limit = 10 * kSecond;
  Duration connect_limit = 30 * kSecond;
  Duration min_wait = 600 * kSecond;  // how long the job waits with fewer than min_np workers
  // How long the coordinator only listens, from the first message on, because workers of an earlier
  // coordinator may still be there. No shorter than the lease. 0: there was no earlier one.
  Duration rebuild_wait = 0;
  Duration join_interval = 2 * kSecond;
  // How many generations may follow the first one, in each `reset_window`; if that is 0, in the
  // whole job. -1: no limit. At the limit joiners wait, and a failure ends the job.
  int reset_limit = -1;
  Duration reset_window = 0;
  bool count_changes = true;  // whether generations that begin without a failure count too
  // The job ends when the same error came this often at the same commit, or when this number of
  // workers ended without calling init.
  int same_error_limit = 3;
  HostPolicy hosts;
};

// An agent reports that a process is over.
struct ProcessEnd {
  WorkerId worker = kNobody;
  int exit_code = 0;  // negative: it was not started, because its launcher ends
  std::string cause;  // the exception that ended it; "" if it is not known
};

// An agent that has found a new coordinator reports that a process lives.
struct LivingProcess {
  WorkerId worker = kNobody;
  Place place;
};

// What happened since the last Step, in the order in which it is handled.
struct CoordinatorEvents {
  std::optional<std::vector<HostSlots>> hosts;  // all hosts of the job from now on
  std::vector<LivingProcess> living;
  // The highest numbers that agents know.
  WorkerId last_worker = kNobody;
  Generation last_generation = 0;
  std::vector<ProcessEnd> ends;
  std::vector<Report> reports;
  std::vector<WorkerId> cut_off;  // workers whose connection has ended and was not made again
  uint64_t random = 0;            // 64 random bits, new for each Step: the nonce of a generation
};

struct CoordinatorEffects {
  std::vector<std::pair<WorkerId, Command>> commands;
  struct Start {
    WorkerId worker = kNobody;
    Place place;
  };
  std::vector<Start> starts;
  // Workers that were taken for dead. Their agents end what is left of their processes.
  std::vector<WorkerId> kills;
  std::vector<std::string> notes;  // for the log
  struct End {
    int code = 0;
    std::string reason;
  };
  std::optional<End> end;  // the job ends; set in one Step only
};

// From        To          When
// kGathering  kForming    all members have stopped, and enough workers are ready: Close, Propose
// kGathering  kOver       the training is done, no reset is left, or too few workers for min_wait
// kForming    kRunning    all members are connected: Advance
// kForming    kGathering  a member failed, was lost or did not connect in time: StartRound
// kRunning    kGathering  the same, or all members have stopped at a commit: StartRound
// any         kOver       each host is barred, one error comes again and again, or the workers end
//                         without calling init: EndJob
// A coordinator that rebuilds has been in kGathering and goes on in the phase of the newest
// generation that it has heard of.
enum class Phase : uint8_t {
  kGathering,  // waits until all members have stopped, and enough workers are ready
  kForming,    // a generation was proposed; its members connect
  kRunning,    // the members train
  kOver,       // the job has ended
};

// Decides which workers of an elastic job are in which generation. A state machine without thread,
// socket or clock. It numbers generations and judges by the time of its Steps which worker is
// silent. It ends a generation when a member is lost, or when workers come or go. It proposes the
// next generation when all members that are not known to be dead have stopped. One thread; lives as
// long as the job.
class TFRING_EXPORT Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);

  CoordinatorEffects Step(TimePoint now, CoordinatorEvents events);

  // When Step wants to be called again even if nothing happens.
  TimePoint next_deadline() const { return phase() == Phase::kOver ? kNever : ticks_.next; }

  Phase phase() const { return static_cast<Phase>(phase_.index()); }
  const Record& record() const { return record_; }  // the last proposed

 private:
  using Process = coordinator_state::Process;
  using Shortage = coordinator_state::Shortage;
  using Gathering = coordinator_state::Gathering;
  using Forming = coordinator_state::Forming;
  using Running = coordinator_state::Running;
  using Over = coordinator_state::Over;

  // coordinator.cc: what comes in.
  void Forgive(Duration pause);
  void SetHosts(std::vector<HostSlots> hosts);
  void OnEnd(const ProcessEnd& end);
  bool CountWithoutInit(const ProcessEnd& end, const Process& process);
  bool CountCause(const ProcessEnd& end, const Process& process);
  void OnReport(Report report);
  void OnMemberReport(const Process& process);
  void Repair(WorkerId worker, Process* process);
  void Expire();
  bool IsHeard(const Process& process) const {
    return !process.cut_off && now_ - process.heard <= options_.lease;
  }
  bool IsSilent(WorkerId worker, const Process& process, Duration limit) const;
  std::set<std::string> LostHosts() const;
  void CheckLimits();
  void EvictLate(TimePoint since, Duration limit, bool to_stop);
  void OnHostFailure(const std::string& host, bool at_once = false);
  void Evict(WorkerId worker, const std::string& why);
  void Remove(WorkerId worker);
  void Tell(WorkerId worker, Command command);
  void Tell(WorkerId worker, CommandKind kind, std::string reason = "");
  void EndJob(int code, const std::string& reason);
  bool IsMember(WorkerId worker) const { return member_ids_.count(worker) != 0; }
  // Null in other phases.
  Gathering* gathering() { return std::get_if<Gathering>(&phase_); }
  const Gathering* gathering() const { return std::get_if<Gathering>(&phase_); }
  Running* running() { return std::get_if<Running>(&phase_); }
  const Running* running() const { return std::get_if<Running>(&phase_); }

  // coordinator_rebuild.cc: what a coordinator before this one has left.
  void OnLiving(const LivingProcess& living);
  bool Adopt(WorkerId worker, const Report& report) const;
  void TakeRecord(Record record);
  bool StillRebuilds(bool someone);
  void Rebuild();

  // coordinator_rounds.cc: generations.
  void Advance(uint64_t random);
  void StartRound(const std::string& why, bool failed);
  void SendEnds(Gathering* gather);
  static bool HasStopped(const Process& process);
  bool IsReady(const Process& process) const;
  size_t CountReady(size_t most) const;
  bool AnyStays() const;
  bool AllStopped() const;
  bool AllConnected() const;
  bool AllDone() const;
  void KeepState();
  WorkerId AheadOfAllThatStay() const;
  void DismissLeavers();
  void Close(uint64_t random);
  void JudgeSuspects();
  bool EnoughReady(Gathering* gather);
  std::vector<WorkerId> NextMembers() const;
  void Propose(const std::vector<WorkerId>& members, uint64_t random);
  int ResetsLeft();
  void WatchForChanges(Running* run);
  void StartWorkers();

  const CoordinatorOptions options_;

  // This Step.
  TimePoint now_ = 0;
  CoordinatorEffects effects_;
  coordinator_state::Ticks ticks_;

  std::variant<Gathering, Forming, Running, Over> phase_;  // in the order of Phase
  std::optional<coordinator_state::Rebuilding> rebuilding_;

  // Workers and their hosts.
  Hosts hosts_;
  std::map<WorkerId, Process> processes_;  // started or registered, and not known to be over
  std::map<WorkerId, coordinator_state::Ending> ending_;  // their slots may still be in use
  std::set<WorkerId> over_;                               // their reports are refused
  WorkerId next_worker_ = 1;
  uint64_t next_arrival_ = 1;

  // Generations.
  Generation last_generation_ = 0;  // the highest number that was ever used
  Record record_;                   // the last proposed
  std::set<WorkerId> member_ids_;   // of record_
  Position newest_position_;        // that a worker has reported since record_
  TimePoint old_leases_end_ = 0;    // until then a disconnected worker may still publish
  Suspects suspects_;
  Generation suspects_judged_in_ = 0;  // the last generation whose suspects were judged
  coordinator_state::Handover handover_;
  coordinator_state::Changes changes_;
  coordinator_state::RepeatedError repeated_error_;
  int ended_without_init_ = 0;  // workers that ended with code 0 before any registered
};

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_H_
