#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/membership/hosts.h"
#include "ops/runtime/membership/messages.h"
#include "ops/runtime/membership/suspects.h"

namespace tfring::membership {

struct CoordinatorOptions {
  int np = 1;  // ranks that the first generation waits for, up to `start_wait`
  int min_np = 1;
  int max_np = 1;
  int spares = 0;             // workers that are started beyond max_np, and wait
  WorkerId first_worker = 1;  // above all ids that a job which starts again has had
  Duration start_wait = 60 * kSecond;
  // For a process to be ready; and how long one may be silent whose end its launcher would report.
  Duration start_limit = 120 * kSecond;
  // How long a worker that no launcher vouches for, or that others have lost, may be silent.
  Duration lease = 5 * kSecond;
  // How long a worker that is heard of may take to stop, and to connect. A worker may publish for a
  // lease after its last answer, so the first is no shorter than the lease.
  Duration stop_limit = 10 * kSecond;
  Duration connect_limit = 30 * kSecond;
  Duration min_wait = 600 * kSecond;  // with fewer than min_np workers
  // How long it listens and decides nothing, from when it first hears of somebody: there may have
  // been a coordinator before it, whose workers are still there. No shorter than the lease. 0: it
  // is the first.
  Duration rebuild_wait = 0;
  Duration join_interval = 2 * kSecond;
  // How many generations may follow the first in `reset_window`, or in all if that is 0; -1: no
  // limit. At the limit joiners wait, and a failure ends the job.
  int reset_limit = -1;
  Duration reset_window = 0;
  bool count_changes = true;  // whether generations that begin without a failure count, too
  // The same error at the same commit ends the job; and programs that do not call init do.
  int same_error_limit = 3;
  HostPolicy hosts;
};

// What an agent says: a process is over.
struct ProcessEnd {
  WorkerId worker = kNobody;
  int exit_code = 0;  // negative: it was not started, because its launcher ends
  std::string cause;  // the exception that ended it; "" if none is known
};

// What an agent says that has lost its coordinator and found one: this process lives.
struct LivingProcess {
  WorkerId worker = kNobody;
  Place place;
};

// What happened since the last Step, in the order in which it is handled.
struct CoordinatorEvents {
  std::optional<std::vector<HostSlots>> hosts;  // all that there are now
  std::vector<LivingProcess> living;
  // The highest that agents know of.
  WorkerId last_worker = kNobody;
  Generation last_generation = 0;
  std::vector<ProcessEnd> ends;
  std::vector<Report> reports;
  std::vector<WorkerId> cut_off;  // whose connection has ended, and has not come again
  uint64_t random = 0;            // 64 random bits, new for each Step: the nonce of a generation
};

struct CoordinatorEffects {
  std::vector<std::pair<WorkerId, Command>> commands;
  struct Start {
    WorkerId worker = kNobody;
    Place place;
  };
  std::vector<Start> starts;
  // Of processes that were taken for dead: what is left of them is to be ended by their agents.
  std::vector<WorkerId> kills;
  std::vector<std::string> notes;  // for the log
  struct End {
    int code = 0;
    std::string reason;
  };
  std::optional<End> end;  // of the job; once
};

enum class Phase : uint8_t {
  kGathering,  // waits until all that live have stopped, and there are enough
  kForming,    // a generation was proposed; its members connect
  kRunning,
  kOver,
};

// The authority of an elastic job, as a state machine without thread, socket or clock: who is in
// which generation. It numbers generations, judges by its own clock who is silent, closes a
// generation when a member is lost or wants to come or go, and proposes the next one when everybody
// who is not known to be dead has stopped. One thread; lives as long as the job.
class TFRING_EXPORT Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);

  CoordinatorEffects Step(TimePoint now, CoordinatorEvents events);

  // When Step wants to be called again even if nothing happens.
  TimePoint next_deadline() const { return phase_ == Phase::kOver ? kNever : next_tick_; }

  Phase phase() const { return phase_; }
  const Record& record() const { return record_; }  // the last proposed

 private:
  struct Process {
    Place place;
    uint64_t arrival = 0;    // ascends
    TimePoint heard = 0;     // or started, before it has registered
    TimePoint told = 0;      // when something was last said to it, but for answers
    Generation lost_in = 0;  // the last generation in which a member has lost it
    bool started = false;    // by our order; its launcher reports its end
    bool registered = false;
    bool cut_off = false;  // its connection has ended since it was heard
    bool leaving = false;  // has to, or wants to (last.leaving)
    Report last;
  };
  struct Ended {
    Place place;
    TimePoint when = 0;
  };

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
  void OnHostFailure(const std::string& host, bool at_once = false);
  void Evict(WorkerId worker, const std::string& why);
  void Remove(WorkerId worker);
  void Tell(WorkerId worker, Command command);
  void Tell(WorkerId worker, CommandKind kind, std::string reason = "");
  void EndJob(int code, const std::string& reason);
  bool IsMember(WorkerId worker) const { return member_ids_.count(worker) != 0; }

  // coordinator_rebuild.cc: what a coordinator before this one has left.
  void OnLiving(const LivingProcess& living);
  bool Adopt(WorkerId worker, const Report& report) const;
  void TakeRecord(Record record);
  bool StillRebuilds(bool someone);
  void Rebuild();

  // coordinator_rounds.cc: generations.
  void Advance(uint64_t random);
  void StartRound(const std::string& why, bool failed);
  void SendEnds();
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
  bool EnoughReady();
  std::vector<WorkerId> NextMembers() const;
  void Propose(const std::vector<WorkerId>& members, uint64_t random);
  int ResetsLeft();
  void WatchForChanges();
  void StartWorkers();

  const CoordinatorOptions options_;
  TimePoint now_ = 0;
  CoordinatorEffects effects_;  // of this Step
  Phase phase_ = Phase::kGathering;
  TimePoint first_step_ = kNever;
  TimePoint next_tick_ = 0;
  bool forgave_ = false;           // in the last Step
  bool rebuilds_ = false;          // listens to what a coordinator before it has left
  TimePoint rebuilt_at_ = kNever;  // when that ends
  Hosts hosts_;
  Suspects suspects_;
  std::map<WorkerId, Process> processes_;  // started or registered, and not known to be over
  std::map<WorkerId, Ended> ending_;       // told to leave: their slots may still be in use
  std::set<WorkerId> over_;                // all that will never be heard again
  WorkerId next_worker_ = 1;
  uint64_t next_arrival_ = 1;

  Generation number_ = 0;  // the last that was used
  Record record_;
  Position reached_;               // the newest commit that a worker has reported since record_
  WorkerId kept_ = kNobody;        // a member that leaves once another has its state
  bool hands_over_ = false;        // record_ has such a member
  Generation judged_ = 0;          // the last whose suspects were looked at
  std::set<WorkerId> member_ids_;  // of record_
  bool ran_ = false;               // a generation has trained
  TimePoint round_since_ = 0;
  TimePoint formed_at_ = 0;
  bool ends_sent_ = false;          // kGathering: all members were told to stop
  bool failed_ = false;             // kGathering: because of a failure
  bool pending_ = false;            // kRunning: members shall stop at the next commit
  TimePoint short_since_ = kNever;  // fewer than min_np
  bool short_told_ = false;         // and it was said
  TimePoint last_join_ = -kSecond * 1000;
  int64_t best_step_ = 0;      // kRunning: of all members
  TimePoint advanced_at_ = 0;  // kRunning: when it last grew
  TimePoint publish_at_ = 0;   // what workers that were cut off may have been allowed is over then
  std::deque<TimePoint> resets_;
  std::string last_cause_;  // without its numbers
  Position last_cause_at_;
  Generation last_cause_in_ = 0;  // the last whose member had it
  int same_causes_ = 0;
  int without_init_ = 0;               // workers that have ended well, before any had registered
  CoordinatorEffects::End over_with_;  // kOver
};

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_H_
