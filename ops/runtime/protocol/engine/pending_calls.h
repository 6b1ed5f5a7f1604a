#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PENDING_CALLS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PENDING_CALLS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"

namespace tfring {

// The calls of this rank that have no result yet, found by name, by plan or all together. An entry
// is waiting (for its plan) or running (its plan is with the backend). Part of the engine: control
// thread only, lives for one generation. Iteration is in the order of ids, so that a run can be
// repeated.
class PendingCalls {
 public:
  // False if a call of that name and process set is open already.
  bool Add(uint64_t id, const Request& request);

  std::optional<uint64_t> FindWaiting(ProcessSetId set, const std::string& name);

  // A waiting entry ends without having run.
  void Remove(uint64_t id);

  // The plan goes to the backend: its entries are running from now on.
  void HandOver(uint64_t sequence, std::vector<uint64_t> ids);

  // The backend is through with the plan: removes and returns its entries. Empty if it is unknown.
  std::vector<uint64_t> TakeRunning(uint64_t sequence);

  // Removes and returns all that wait.
  std::vector<uint64_t> TakeWaiting();

  // "'x'", or "'x' and 3 more", of the running plan.
  std::string Describe(uint64_t sequence) const;
  // The same for the plan that has been running longest.
  std::string DescribeOldest() const;

  bool any_running() const { return !running_.empty(); }
  size_t size() const { return entries_.size(); }

 private:
  struct Open {
    ProcessSetId set = kGlobalProcessSet;
    std::string name;
    bool running = false;
  };
  std::map<uint64_t, Open> entries_;
  NameTable<uint64_t> by_name_;
  std::map<uint64_t, std::vector<uint64_t>> running_;  // by plan sequence
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PENDING_CALLS_H_
