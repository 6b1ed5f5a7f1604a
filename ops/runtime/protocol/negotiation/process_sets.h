#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PROCESS_SETS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PROCESS_SETS_H_

#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/message/request_checks.h"

namespace tfring {

// Which ranks belong to which process set. Id 0 is all ranks. A value type. The plans that add and
// remove sets change it, so it is the same on every rank at the same point of the plan stream: the
// engine of each rank has one. The sequencer has another, which is ahead: it includes the last plan
// that the sequencer made. Other threads read a snapshot that the engine publishes.
class ProcessSets {
 public:
  // Ids up to `last_id` are not used: earlier generations of the process had sets with them.
  explicit ProcessSets(int size, ProcessSetId last_id = kGlobalProcessSet);

  // InvalidArgument if a rank is out of range or named twice, or the id is taken.
  Status Add(ProcessSetId id, std::vector<Rank> ranks);

  // InvalidArgument for the global set, and for one that does not exist.
  Status Remove(ProcessSetId id);

  // The id of the set that has exactly these ranks, which ascend; or -1.
  ProcessSetId FindEqual(const std::vector<Rank>& ranks) const;

  // The id of the next set to be added. Ids are never used again, also not in later generations: a
  // call that names a removed set gets an error, not another set.
  ProcessSetId NextId() const { return last_id_ + 1; }

  // Members in ascending order, or null for an unknown id.
  const std::vector<Rank>* Find(ProcessSetId id) const;

  // False for an unknown id, too.
  bool Contains(ProcessSetId id, Rank rank) const;

  const std::map<ProcessSetId, std::vector<Rank>>& all() const { return sets_; }

 private:
  int size_;
  ProcessSetId last_id_;
  std::map<ProcessSetId, std::vector<Rank>> sets_;
};

// Checks a call of rank `self` before the engine gets it; `sets` are those that the caller sees,
// and `memory` what it has for the call, null where there is no data. InvalidArgument if rank 0
// could not match it with the calls of other ranks: an unknown process set, one that `self` is no
// member of, or a request that fails CheckRouting. A request that is wrong otherwise becomes a
// refusal, which the engine takes like any other request. Pure.
Status AdmitRequest(const ProcessSets& sets, Rank self, const CallMemory* memory, Request* request);

// "there is no process set 3: ..."
std::string NoSuchSet(ProcessSetId id);

// FailedPrecondition for a call that was admitted and whose process set was removed before it ran.
Status SetWasRemoved(const Request& request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PROCESS_SETS_H_
