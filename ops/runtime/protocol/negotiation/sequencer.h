#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/fusion_planner.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/stall_inspector.h"

namespace tfring {

// The one place where plans of all process sets get their order: counts readiness, validates,
// fuses, stamps; keeps the process sets as of the last plan. Plans are compact: an item whose id
// all members know has neither name nor dimensions. Holds plans back while max_plans_in_flight of
// those that rank 0 takes part in are unfinished, so that what becomes ready meanwhile is fused;
// plans of other sets never wait, as nobody here sees them end. Rank 0's control thread; lives for
// one generation.
class Sequencer {
 public:
  struct Stamped {
    Plan plan;
    std::vector<Rank> recipients;
  };
  struct Outgoing {
    std::vector<Stamped> plans;  // by sequence
    std::map<Rank, std::vector<uint32_t>> resend;
  };

  Sequencer(const Config& config, ProcessSets process_sets);

  // Internal when `from` cannot have meant it.
  Status OnRequests(Rank from, std::vector<Request> requests,
                    const std::vector<uint32_t>& cache_ids, TimePoint now);

  // Rank 0's backend is through with it. Not needed for plans that move no data: nothing waits for
  // them.
  void OnPlanDone(uint64_t sequence);
  void OnDeparted(Rank rank);

  // Appends stall reports that are due. DeadlineExceeded when a tensor has stalled for too long.
  Status OnTime(TimePoint now, std::vector<std::string>* warnings);

  // Stamps what may go now.
  Outgoing Take();

  TimePoint next_deadline() const { return stalls_.next_deadline(); }

 private:
  Status OnRequest(Rank from, Request request, TimePoint now);
  Status OnResent(Rank from, TimePoint now);
  Status OnCacheId(Rank from, uint32_t id, TimePoint now);
  Status Record(Rank from, const std::vector<Rank>& members, RankRequest rank_request,
                TimePoint now);
  void SettleWithout(Rank rank, TimePoint now);
  void TryComplete(Pending* pending, TimePoint now);
  void Complete(Pending* pending);
  static Status Validate(Pending* pending);
  void Reject(Rank from, const Request& request, Status error);
  std::vector<Rank> DepartedOf(const std::vector<Rank>& members) const;
  void Cancel(Pending* pending, const std::vector<Rank>& departed);
  void End(Pending* pending, Status error);
  void Unwatch(Pending* pending);
  bool StampNext(FusionPlanner* planner, Outgoing* out);
  void AddItem(const Pending& pending, Plan* plan);
  void AddValues(const Pending& pending, Plan* plan);
  Status AddSet(const Request& request, std::vector<int64_t>* values);
  Status RemoveSet(const Request& request, std::vector<int64_t>* values);
  std::map<Rank, const Pending*> OldestWaits() const;
  std::string StallReport(const Pending& pending, TimePoint now,
                          const std::map<Rank, const Pending*>& waits) const;

  ProcessSets sets_;  // as of the last plan that was stamped
  const size_t max_in_flight_;
  const Duration stall_shutdown_;
  Readiness readiness_;
  Joins joins_;
  ResponseCache cache_;
  StallInspector stalls_;
  FusionPlanner throttled_;      // plans with rank 0
  FusionPlanner unthrottled_;    // all others
  std::vector<Stamped> errors_;  // not stamped yet
  std::map<Rank, std::vector<uint32_t>> resend_;
  std::map<Rank, size_t> awaited_;                         // requests that a rank has to repeat
  std::map<Rank, std::vector<Request>> late_joins_;        // of those ranks
  std::map<ProcessSetId, std::vector<uint32_t>> evicted_;  // not announced to the set yet
  std::set<uint64_t> in_flight_;                           // plans that rank 0 is executing
  std::set<Rank> departed_;
  uint64_t last_sequence_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_SEQUENCER_H_
