#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_OUTGOING_REQUESTS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_OUTGOING_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// What a rank sends to the sequencer together, in the order of the fields.
struct RequestBatch {
  std::optional<LockMessage> frozen;
  std::vector<std::pair<ProcessSetId, Status>> withdrawals;  // as in a kWithdraw frame
  std::vector<Request> requests;
  std::vector<uint32_t> cache_ids;
};

// What a rank has to send to the sequencer, in batches. Part of the Participant.
class OutgoingRequests {
 public:
  // The batch that goes out last.
  RequestBatch* Last() {
    if (batches_.empty()) batches_.emplace_back();
    return &batches_.back();
  }
  // Starts a new batch for what follows.
  void BeginBatch() {
    if (!batches_.empty()) batches_.emplace_back();
  }
  bool empty() const { return batches_.empty(); }

  // Hands over all batches.
  std::vector<RequestBatch> Take() { return std::exchange(batches_, {}); }

 private:
  std::vector<RequestBatch> batches_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_OUTGOING_REQUESTS_H_
