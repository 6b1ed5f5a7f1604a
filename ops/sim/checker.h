#ifndef TFRING_OPS_SIM_CHECKER_H_
#define TFRING_OPS_SIM_CHECKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// Which failures a run may show besides those that its workload expects.
struct Allowed {
  Rank lost = kNoRank;      // Unavailable that names this rank
  Rank departed = kNoRank;  // Cancelled that says that this rank has shut down
  bool silent = false;      // the lost rank was found by its missing heartbeats
  bool cascade = false;     // whoever hears that a rank has shut down does the same
};

// Watches all ranks and says what must never be seen: plans in different orders or with different
// content, results that are missing, doubled or wrong. Lives for one run; one thread.
class Checker {
 public:
  // With `check_order` false wrong orders are left to show as deadlocks.
  Checker(int ranks, bool check_order) : check_order_(check_order), ranks_(ranks) {}

  void OnSubmit(Rank rank, CallId id, const Call& call);
  void OnRun(Rank rank, const PlanRun& run);
  void OnResult(Rank rank, CallId id, const Status& status);
  // From here on calls on this rank have to end at once and in failure.
  void OnShutdown(Rank rank) { ranks_[rank].shut_down = true; }
  void SetAllowed(const Allowed& allowed) { allowed_ = allowed; }

  // The run is over: whoever is in `ended` has to have all its results.
  void Finish(const std::vector<Rank>& ended);

  void Fail(const std::string& what);
  const std::vector<std::string>& failures() const { return failures_; }

  size_t open(Rank rank) const { return ranks_[rank].open; }
  const Request& request(Rank rank, CallId id) const {
    return ranks_[rank].entries.at(id).call.request;
  }
  int64_t plans() const { return static_cast<int64_t>(plans_.size()); }
  int64_t results() const { return results_; }

 private:
  struct Entry {
    Call call;
    int results = 0;
  };
  struct PerRank {
    std::map<CallId, Entry> entries;
    uint64_t last_sequence = 0;
    size_t open = 0;
    bool shut_down = false;
  };
  struct SeenPlan {
    std::string content;
    size_t runs = 0;
    size_t members = 0;
  };

  std::string Verdict(Rank rank, const Call& call, const Status& status) const;
  bool NamesWhoLeft(const std::string& text) const;
  void CheckEntries(Rank rank, const PlanRun& run);
  static std::string CheckItem(Rank rank, const PlanRun& run, const PlanItem& item,
                               const Call& call);

  const bool check_order_;
  Allowed allowed_;
  std::vector<PerRank> ranks_;
  std::map<uint64_t, SeenPlan> plans_;
  int64_t results_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CHECKER_H_
