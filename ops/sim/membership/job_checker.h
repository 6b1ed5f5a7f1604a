#ifndef TFRING_OPS_SIM_MEMBERSHIP_JOB_CHECKER_H_
#define TFRING_OPS_SIM_MEMBERSHIP_JOB_CHECKER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/membership/messages.h"
#include "ops/sim/membership/options.h"
#include "ops/sim/membership/training.h"

namespace tfring::sim {

// Is told what the coordinator and every worker of an elastic job do, and collects what must never
// happen. Lives for one run; one thread.
class JobChecker {
 public:
  explicit JobChecker(const Scenario* scenario) : scenario_(scenario) {}

  // Where a worker is when a generation is proposed that it may be part of.
  struct Standing {
    bool alive = false;
    bool stopped = false;  // applies no step
    bool boundary = false;
    bool leaving = false;  // was asked to, or its host is gone
    membership::Position position;
  };
  using Standings = std::map<membership::WorkerId, Standing>;

  void OnProposed(TimePoint now, const membership::Record& record, const Standings& standings);
  // A worker connects for a generation.
  void OnConnect(membership::WorkerId worker, const membership::Record& record);
  void OnSynced(membership::WorkerId worker, const membership::Record& record,
                const TrainState& state);
  // A worker in generation `mine` applies a result of generation `of`.
  void OnApply(membership::WorkerId worker, membership::Generation mine, membership::Generation of);
  void OnCommit(membership::WorkerId worker, membership::Generation generation, size_t members,
                const TrainState& state);
  void OnPublish(membership::WorkerId worker, membership::Generation generation);
  // The members of a step do not have the same batch.
  void OnDifferentBatches(membership::WorkerId worker, const Batch& a, const Batch& b);
  // Something bad happened to the generation, so that its members may stop at different commits.
  void OnFault(membership::Generation generation) { faulted_.insert(generation); }
  void OnFaultAnywhere() { OnFault(last_.generation); }
  // A worker that lives, and has this state, has to leave; `left` is the best of all others.
  void OnDismissed(membership::WorkerId worker, const membership::Position& position,
                   const membership::Position& left);
  // The coordinator takes a worker for dead that it last heard of at `heard`, because it was
  // silent.
  void OnEvicted(TimePoint now, membership::WorkerId worker, TimePoint heard, bool lived);
  // The coordinator takes a worker for dead that has no connection and that others have lost: this
  // one may still live. `wrong`: it has one, or its generation trains.
  void OnCutOff(membership::WorkerId worker, bool wrong);
  // An answer of the coordinator lets a member of this generation publish.
  void OnAllowed(membership::Generation generation) { allowed_ = std::max(allowed_, generation); }
  // It knows nothing of budgets and cool-downs.
  void OnNewCoordinator();
  void OnFailureOf(TimePoint now, const std::string& host, bool at_once = false);
  bool IsBarred(const std::string& host) const;  // for good, by its first failure
  void OnStart(TimePoint now, const std::string& host);
  void OnCommand(membership::CommandKind kind) {
    if (kind != membership::CommandKind::kAnswer) ++commands_;
  }
  void OnJobEnd(TimePoint now, int code, const std::string& reason);
  void OnTrainingOver(membership::WorkerId worker, const TrainState& state);
  // The run is over; messages were lost in it if `lossy`.
  void Finish(bool lossy);

  void Fail(const std::string& what);
  const std::vector<std::string>& failures() const { return failures_; }
  int64_t generations() const { return static_cast<int64_t>(records_.size()); }
  int64_t joins() const { return joins_; }
  int64_t commits() const { return static_cast<int64_t>(common_.size()); }
  int64_t fallbacks() const { return fallbacks_; }
  int64_t publications() const { return publications_; }

 private:
  void CheckBoundary(TimePoint now, const membership::Record& record, const Standings& standings);
  void CheckRoot(const membership::Record& record, const Standings& standings);
  void CheckHistory(membership::WorkerId worker, const TrainState& state, bool whole);

  const Scenario* const scenario_;
  std::map<membership::Generation, std::string> records_;  // as bytes
  membership::Record last_;
  std::set<membership::Generation> faulted_;
  std::map<membership::Generation, std::string> states_;  // after the state was taken
  std::map<std::pair<membership::Generation, int64_t>, size_t> committers_;
  std::map<int64_t, std::string> common_;  // commits that all members made, and what they hold
  std::vector<TimePoint> resets_;
  bool handing_over_ = false;  // whether a member of last_ has to leave
  TimePoint last_resize_ = -1000 * kSecond;
  std::map<std::string, std::vector<TimePoint>> host_failures_;
  std::map<std::string, std::pair<TimePoint, int>> cooling_;  // until, how often
  std::set<membership::WorkerId> cut_off_;
  membership::Generation allowed_ = 0;  // the newest that may have published
  int64_t commands_ = 0;
  int64_t allowed_commands_ = 0;
  int64_t joins_ = 0;
  int64_t fallbacks_ = 0;
  int64_t publications_ = 0;
  bool over_ = false;
  std::vector<std::string> failures_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_MEMBERSHIP_JOB_CHECKER_H_
