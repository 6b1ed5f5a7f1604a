#ifndef TFRING_OPS_RUNTIME_PROCESS_MEMBER_TABLE_H_
#define TFRING_OPS_RUNTIME_PROCESS_MEMBER_TABLE_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

// The process sets of this rank as the threads that make calls see them. The control thread changes
// it when it executes the plan that adds or removes a set, before the call ends that asked for it.
// Thread-safe; lives for one generation.
class MemberTable {
 public:
  using Members = std::shared_ptr<const std::vector<Rank>>;

  // Knows the global process set.
  explicit MemberTable(int size);

  // The members in ascending order, or null for an unknown id.
  Members Find(ProcessSetId id) const;
  std::map<ProcessSetId, std::vector<Rank>> All() const;

  // As ProcessSets::Add.
  Status Add(ProcessSetId id, std::vector<Rank> ranks);
  void Remove(ProcessSetId id);

 private:
  const int size_;
  mutable std::mutex mutex_;  // guards sets_
  std::map<ProcessSetId, Members> sets_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_MEMBER_TABLE_H_
