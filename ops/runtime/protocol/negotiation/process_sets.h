#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PROCESS_SETS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PROCESS_SETS_H_

#include <map>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Which ranks belong to which process set. Id 0 is all ranks. The same on every rank at the same
// point of the plan stream. The engine has one, the sequencer another that is ahead of it; control
// thread only.
class ProcessSets {
 public:
  explicit ProcessSets(int size);

  // InvalidArgument if a rank is out of range or named twice, or the id is taken.
  Status Add(ProcessSetId id, std::vector<Rank> ranks);

  // InvalidArgument for the global set, and for one that does not exist.
  Status Remove(ProcessSetId id);

  // The set that has exactly these ranks, which ascend; or -1.
  ProcessSetId FindEqual(const std::vector<Rank>& ranks) const;

  // An id that no set has had so far: whoever still names a removed one gets an error, not another
  // set.
  ProcessSetId NextId() const { return last_id_ + 1; }

  // Members in ascending order, or null for an unknown id.
  const std::vector<Rank>* Find(ProcessSetId id) const;

  // Position of `rank` in the set, or -1.
  int PositionOf(ProcessSetId id, Rank rank) const;

 private:
  int size_;
  ProcessSetId last_id_ = kGlobalProcessSet;
  std::map<ProcessSetId, std::vector<Rank>> sets_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_PROCESS_SETS_H_
