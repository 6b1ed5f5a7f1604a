#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"

namespace tfring {

// The half of the negotiation that every rank has: turns calls into requests or cache ids, and
// compact plans of the sequencer back into whole ones, after checking them against the calls; keeps
// the process sets of this rank. Owned by the Negotiator; one thread.
class Participant {
 public:
  Participant(Rank rank, ProcessSets* process_sets) : rank_(rank), process_sets_(process_sets) {}

  void Submit(Request request);

  // What Submit and OnResend want to be sent; forgets it.
  void TakeOutgoing(std::vector<Request>* requests, std::vector<uint32_t>* cache_ids);

  // Completes `plan` in place, and changes the process sets if it says so. Internal if it makes no
  // sense here.
  Status OnPlan(Plan* plan);

  // The sequencer does not know these ids any more. Calls whose process set was removed end with a
  // plan in `ended`: its id may mean other ranks by the time a request arrives. Internal for an id
  // that was not sent.
  Status OnResend(const std::vector<uint32_t>& cache_ids, std::vector<Plan>* ended);

  size_t unplanned() const { return unplanned_.size(); }
  int64_t cache_hits() const { return cache_hits_; }

 private:
  struct Unplanned {
    Request request;
    uint32_t sent_id = 0;      // 0: sent in full
    bool set_removed = false;  // since it was made: its process set id may mean other ranks now
  };
  Status TakeItem(const Plan& plan, PlanItem* item);
  Status CheckItem(const Plan& plan, const PlanItem& item, const Request& request) const;
  Status FindMembers(Plan* plan) const;
  Status ChangeSets(const Plan& plan);

  const Rank rank_;
  ProcessSets* const process_sets_;
  NameTable<Unplanned> unplanned_;
  // Ids in flight, by what they were sent for: stays true when the id is evicted meanwhile.
  std::unordered_map<uint32_t, std::pair<ProcessSetId, std::string>> sent_ids_;
  KnownIds known_;
  std::vector<Request> requests_;
  std::vector<uint32_t> cache_ids_;
  uint64_t last_sequence_ = 0;
  int64_t cache_hits_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PARTICIPANT_H_
