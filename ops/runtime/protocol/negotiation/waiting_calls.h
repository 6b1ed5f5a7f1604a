#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_WAITING_CALLS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_WAITING_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"

namespace tfring {

// A call of this rank that waits for a plan.
struct WaitingCall {
  CallId id = 0;
  Request request;
  uint64_t attempt = 0;
  uint32_t sent_id = 0;  // 0: sent in full
  bool in_plan = false;  // named by the plan that is being taken
};

// The calls of this rank that wait for a plan, by process set and name, and by the cache id as
// which they were sent. Part of the Participant.
class WaitingCalls {
 public:
  // No call of this name waits in its process set.
  void Add(WaitingCall call);
  // Null if there is none.
  WaitingCall* Find(ProcessSetId set, const std::string& name) { return by_name_.Find(set, name); }
  // Takes out a call that waits.
  WaitingCall Take(WaitingCall* call);

  // The call that was sent as this id and waits, or null.
  WaitingCall* FindSent(uint32_t cache_id) const;
  bool sent(uint32_t cache_id) const { return by_sent_id_.count(cache_id) > 0; }
  // All such ids, in the order of the calls.
  std::vector<uint32_t> SentIds() const;

  template <typename Action>
  void ForEach(const Action& action) const {
    by_name_.ForEach(action);
  }

  // Hands over the ids of all calls, ascending.
  std::vector<CallId> TakeAll();

  size_t size() const { return by_name_.size(); }

 private:
  NameTable<WaitingCall> by_name_;
  std::unordered_map<uint32_t, WaitingCall*> by_sent_id_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_WAITING_CALLS_H_
