#ifndef TFRING_OPS_SIM_CHECKER_H_
#define TFRING_OPS_SIM_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// The errors with which calls may end in a run, besides those that its workload expects.
struct AllowedErrors {
  Rank lost = kNoRank;      // Unavailable that names this rank
  Rank departed = kNoRank;  // Cancelled with the text that this rank has shut down
  bool silent = false;      // only missing heartbeats may reveal the lost rank
  bool cascade = false;     // ranks that learn that a rank has shut down also shut down
};

// Records what each rank submits, runs and gets as a result, and collects violations: plans in
// different orders or with different content; results that are missing, doubled or wrong. Lives for
// one run; used by one thread.
class Checker {
 public:
  explicit Checker(int ranks) : ranks_(ranks) {}

  void OnSubmit(Rank rank, CallId id, const Call& call);
  void OnRun(Rank rank, const PlanRun& run);
  // The plan has ended on this rank.
  void OnPlanEnd(Rank rank, const Completion& completion);
  void OnResult(Rank rank, CallId id, const Status& status);
  // A lock has begun or ended on this rank.
  void OnLockNews(Rank rank, const LockNews& news);
  // This rank's step failed, as this rank knows.
  void OnFailure(Rank rank, ProcessSetId set, uint64_t attempt) {
    failures_of_steps_[{set, attempt}].push_back(rank);
  }
  // This rank shuts down, so its calls may end as Cancelled from now on.
  void OnShutdown(Rank rank) { ranks_[rank].shut_down = true; }
  void Allow(const AllowedErrors& allowed) { allowed_ = allowed; }

  // Ends the run. The calls of the ranks in `ended` must all have ended.
  void Finish(const std::vector<Rank>& ended);

  void Fail(const std::string& what);
  const std::vector<std::string>& failures() const { return failures_; }

  size_t open(Rank rank) const { return ranks_[rank].open; }
  const Call& call(Rank rank, CallId id) const { return ranks_[rank].calls.at(id).call; }
  int64_t plans() const { return static_cast<int64_t>(plans_.size()); }
  int64_t results() const { return results_; }
  int64_t aborted() const { return aborted_; }
  int64_t locked() const { return locked_; }      // batches of locks, summed over ranks
  int64_t recalled() const { return recalled_; }  // recalled batches of these

 private:
  struct SeenCall {
    Call call;
    int results = 0;
  };
  struct PerRank {
    std::map<CallId, SeenCall> calls;
    uint64_t last_sequence = 0;
    size_t open = 0;
    bool shut_down = false;
    uint64_t lock = 0;  // the present lock; 0: none
  };
  struct SeenPlan {
    std::string content;
    uint64_t attempt = 0;
    size_t runs = 0;
    size_t members = 0;
    bool locked = false;                          // a batch of a lock
    std::map<Rank, std::vector<CallId>> entered;  // calls by rank, until the rank ends the plan
    std::vector<Rank> voids;                      // ranks that did not enter the batch
    bool ended = false;                           // ended with results on some rank
    bool recalled = false;                        // ended without results on some rank
    std::set<std::string> for_host;               // items that a member asked to run on the host
    std::map<Rank, std::vector<int64_t>> told;    // alltoall: each member's values
  };

  std::string WrongResult(Rank rank, const Call& call, const Status& status) const;
  bool NamesAFailedStep(const Call& call, const std::string& text) const;
  bool NamesADisagreement(const Call& call, const std::string& text) const;
  bool NamesADepartedRank(const std::string& text) const;
  void CheckCalls(Rank rank, const PlanRun& run);
  void CheckBatch(const std::string& who, Rank rank, const PlanRun& run);
  void CheckPath(const std::string& who, const PlanRun& run, const Request& request,
                 SeenPlan* seen);
  bool IsTrue(Rank rank, const UnlockReason& reason) const;
  std::string WrongRows(Rank rank, const PlanRun& run);
  static std::string WrongItem(Rank rank, const PlanRun& run, const PlanItem& item,
                               const Call& call);

  AllowedErrors allowed_;
  std::vector<PerRank> ranks_;
  std::map<uint64_t, SeenPlan> plans_;
  std::map<std::pair<ProcessSetId, uint64_t>, std::vector<Rank>> failures_of_steps_;
  // Attempts in which runs made calls that end with an error.
  std::set<std::pair<ProcessSetId, uint64_t>> disagreements_;
  std::map<std::pair<uint64_t, bool>, std::string> lock_news_;  // by lock and LockNews::over
  int64_t results_ = 0;
  int64_t locked_ = 0;
  int64_t recalled_ = 0;
  int64_t aborted_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CHECKER_H_
