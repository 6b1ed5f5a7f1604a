#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_NEWS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_NEWS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/lock.h"

namespace tfring {

// A locked schedule has begun or is over. The same on all ranks. A value type.
struct LockNews {
  uint64_t id = 0;
  bool over = false;
  size_t batches = 0;  // of a round
  size_t tensors = 0;  // calls, of a round
  // With `over`: the rounds that all ranks have run to the end, the rank that ended it, and why.
  uint64_t rounds = 0;
  Rank rank = 0;
  UnlockReason reason;
};

// The name of the cause in metrics: "other_call".
const char* UnlockCauseName(UnlockCause cause);

// A sentence for the log.
std::string NewsText(const LockNews& news);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_NEWS_H_
