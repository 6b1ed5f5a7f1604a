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

// Records the actions of the coordinator and of each worker of an elastic job, and collects
// violations. Lives for one run; used by one thread.
class JobChecker {
 public:
  explicit JobChecker(const Scenario* scenario) : scenario_(scenario) {}

  // The position of a worker when a generation is proposed that may include it.
  struct Standing {
    bool alive = false;
    bool stopped = false;  // applies no step
    bool boundary = false;
    bool leaving = false;  // was asked to leave, or its host is gone
    membership::Position position;
  };
  using Standings = std::map<membership::WorkerId, Standing>;

  void OnProposed(TimePoint now, const membership::Record& record, const Standings& standings);
  // A worker connects to a generation.
  void OnConnect(membership::WorkerId worker, const membership::Record& record);
  void OnSynced(membership::WorkerId worker, const membership::Record& record,
                const TrainState& state);
  // A worker in generation `mine` applies a result of generation `of`.
  void OnApply(membership::WorkerId worker, membership::Generation mine, membership::Generation of);
  void OnCommit(membership::WorkerId worker, membership::Generation generation, size_t members,
                const TrainState& state);
  void OnPublish(membership::WorkerId worker, membership::Generation generation);
  // The members of a step have different batches.
  void OnDifferentBatches(membership::WorkerId worker, const Batch& a, const Batch& b);
  // A fault hit the generation, so its members may stop at different commits.
  void OnFault(membership::Generation generation) { faulted_.insert(generation); }
  void OnFaultAnywhere() { OnFault(last_.generation); }
  // A live worker with this state has to leave; `left` is the best position of all others.
  void OnDismissed(membership::WorkerId worker, const membership::Position& position,
                   const membership::Position& left);
  // The coordinator takes a silent worker for dead; it last heard from the worker at `heard`.
  void OnEvicted(TimePoint now, membership::WorkerId worker, TimePoint heard, bool lived);
  // The coordinator takes a worker for dead that has no connection and that others have lost. The
  // worker may still be alive. `wrong`: it has a connection, or its generation trains.
  void OnCutOff(membership::WorkerId worker, bool wrong);
  // An answer of the coordinator allows a member of this generation to publish.
  void OnAllowed(membership::Generation generation) { allowed_ = std::max(allowed_, generation); }
  // The new coordinator knows no earlier budgets and cool-downs.
  void OnNewCoordinator();
  void OnFailureOf(TimePoint now, const std::string& host, bool at_once = false);
  bool IsBarred(const std::string& host) const;  // for the rest of the job, by its first failure
  void OnStart(TimePoint now, const std::string& host);
  void OnCommand(membership::CommandKind kind) {
    if (kind != membership::CommandKind::kAnswer) ++commands_;
  }
  void OnJobEnd(TimePoint now, int code, const std::string& reason);
  void OnTrainingOver(membership::WorkerId worker, const TrainState& state);
  // Ends the run. `lossy`: messages were lost in it.
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
  std::map<membership::Generation, std::string> records_;  // in encoded form
  membership::Record last_;
  std::set<membership::Generation> faulted_;
  std::map<membership::Generation, std::string> states_;  // after the state transfer
  std::map<std::pair<membership::Generation, int64_t>, size_t> committers_;
  std::map<int64_t, std::string> common_;  // contents of the commits that all members made
  std::vector<TimePoint> resets_;
  bool handing_over_ = false;  // a member of last_ has to leave
  TimePoint last_resize_ = -1000 * kSecond;
  std::map<std::string, std::vector<TimePoint>> host_failures_;
  std::map<std::string, std::pair<TimePoint, int>> cooling_;  // end, number of times
  std::set<membership::WorkerId> cut_off_;
  membership::Generation allowed_ = 0;  // newest generation that may have published
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
