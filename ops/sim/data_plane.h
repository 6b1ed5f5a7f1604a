#ifndef TFRING_OPS_SIM_DATA_PLANE_H_
#define TFRING_OPS_SIM_DATA_PLANE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/sim/pricing.h"
#include "ops/sim/random.h"
#include "ops/sim/virtual_clock.h"

namespace tfring::sim {

// The collective backends of all ranks. Each rank runs the plans of one path one after another, and
// a plan ends on no rank before all its members have begun it. So two ranks that run two common
// plans in different orders wait for ever, as they would on real streams. Moving the data takes as
// long as the CPU backend's schedules would (see PlanPrices) and a random time more. Plans on
// devices are launched first, and mostly report that; they begin when they are launched and those
// before them on the device have ended, of which the host learns later, in any order. A device that
// waits for a rank that is gone does not know which one that is. A batch of a lock that a member
// does not enter is recalled on all, when all have said whether they enter it. Lives for one run;
// one thread.
class DataPlane {
 public:
  using Sink = std::function<void(Rank rank, Completion completion)>;

  DataPlane(int size, VirtualClock* clock, Random random, Sink sink);

  // Each member contributes `bytes`, which is a multiple of 4.
  void Submit(Rank rank, const PlanRun& run, int64_t bytes);
  void Abort(Rank rank, const Status& why);

  // Closes the rank's streams. Its neighbours in an unfinished plan notice after `delay`; the other
  // members of the plan wait.
  void CloseAll(Rank rank, Duration delay);

  // Stops the rank for good. No other rank notices.
  void Freeze(Rank rank) { nodes_[rank].stuck.fill(true); }

  // Returns how many streams broke in the middle of a plan.
  int64_t broken() const { return broken_; }

 private:
  struct Node {
    std::array<std::deque<uint64_t>, kNumDataPaths> queues;  // by path; the front plan is running
    std::deque<uint64_t> unlaunched;                         // the last plans of the device queue
    std::array<bool, kNumDataPaths> stuck = {};  // a stream broke and is not aborted yet
    bool aborted = false;
    bool closed = false;
    TimePoint closed_at = kNever;  // when other ranks notice
    Status why;
  };
  // A plan that a member has submitted and that has not ended on all members.
  struct RunningPlan {
    std::vector<Rank> members;
    DataPath path = DataPath::kCpu;
    Duration cost = 0;
    std::set<Rank> begun;
    std::set<Rank> ended;
    bool recalled = false;  // a member does not enter the plan
    bool failed = false;  // a member is lost: the plan never ends on members that have not ended it
  };

  void LaunchLater(Rank rank);
  void Launch(Rank rank);
  void Begin(Rank rank, DataPath path);
  void End(Rank rank, uint64_t sequence);
  // Makes `rank`, which runs the plan, notice the loss of a neighbour.
  void WatchNeighbours(Rank rank, uint64_t sequence);
  void Break(Rank rank, uint64_t sequence, Rank suspect);
  void CompleteLater(Rank rank, Completion completion);
  bool Running(Rank rank, uint64_t sequence);
  std::deque<uint64_t>& QueueOf(Rank rank, DataPath path) {
    return nodes_[rank].queues[static_cast<size_t>(path)];
  }
  bool Stuck(Rank rank, DataPath path) const {
    return nodes_[rank].stuck[static_cast<size_t>(path)];
  }

  VirtualClock* const clock_;
  Random random_;
  const Sink sink_;
  PlanPrices prices_;
  std::vector<Node> nodes_;
  std::map<uint64_t, RunningPlan> plans_;  // by sequence
  int64_t broken_ = 0;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_DATA_PLANE_H_
