#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PLANNER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/locked/lock_detector.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/negotiation/failures.h"
#include "ops/runtime/protocol/negotiation/fusion_planner.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"

namespace tfring {

// From complete tensors to plans with numbers. What plans refer to (cache ids, joins, process sets)
// changes here and only here, at the moment when a plan gets its number: so each rank, which makes
// the same change when it takes the plan, has the same state at the same point of the sequence.
//
// Of the plans in which rank 0 takes part at most max_plans_in_flight are unfinished at a time;
// what becomes complete meanwhile is fused ("batch while busy"). Plans of other ranks are sent at
// once, because rank 0 does not see them end. Part of the Sequencer.
class Planner {
 public:
  Planner(const Config& config, ProcessSets* sets, Readiness* readiness, Joins* joins,
          Failures* failures);

  // The tensor is complete.
  void Queue(const PendingTensor& pending);

  // Rank 0's backend has finished the plan. Not needed for plans that move no data: they do not
  // count as unfinished.
  void OnPlanDone(uint64_t sequence, bool failed = false);

  // The plans that may be sent now, by sequence; several with one number where the members get
  // different values. Not while there is a locked schedule.
  std::vector<AddressedPlan> Take();

  // True if complete tensors wait because rank 0 already runs the maximum number of plans. Valid
  // only after Take.
  bool holds_back() const { return !throttled_.empty(); }

  // As ResponseCache::Find.
  std::shared_ptr<const Agreement> Find(uint32_t cache_id) const { return cache_.Find(cache_id); }

  // Whether MakeLock is of use: plans have come since the last time.
  bool may_lock() const { return locks_ && detector_.fresh(); }
  // Nothing waits: a locked schedule, if it is time for one. See docs/adr/0045-locked-schedule.md.
  std::optional<LockMessage> MakeLock();
  // The locked schedule is over. `unlock` as in a kUnlock frame.
  void OnUnlock(const LockMessage& unlock);

 private:
  void NotePlan(const Plan& plan);
  bool MakePlan(FusionPlanner* queue, std::vector<AddressedPlan>* plans);
  void AddItem(const PendingTensor& pending, Plan* plan);
  void AddMembershipItem(const PendingTensor& pending, Plan* plan);
  Status AddSet(const Request& request, std::vector<int64_t>* values);
  Status RemoveSet(const Request& request, std::vector<int64_t>* values);

  ProcessSets& sets_;
  Readiness& readiness_;
  Joins& joins_;
  Failures& failures_;
  const size_t max_in_flight_;
  ResponseCache cache_;
  FusionPlanner throttled_;       // complete tensors in which rank 0 takes part
  FusionPlanner unthrottled_;     // all others
  std::set<uint64_t> in_flight_;  // plans that rank 0 is running
  const bool locks_;              // whether it may lock plans that repeat
  LockDetector detector_;
  uint64_t last_sequence_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PLANNER_H_
