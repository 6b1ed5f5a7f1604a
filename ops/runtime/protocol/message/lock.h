#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

class WireReader;
class WireWriter;
enum class FrameType : uint8_t;

// The cache ids of one fused allreduce.
using LockedBatch = std::vector<uint32_t>;

// Why a rank freezes.
enum class UnlockCause : uint8_t {
  kFollows = 0,      // another rank has
  kOtherCall = 1,    // it made a call that is not in the lock; the text names the tensor
  kJoin = 2,         // it joins
  kProcessSets = 3,  // it adds or removes a process set
  kStepFailed = 4,   // its step failed; the text has the cause
  kShutdown = 5,     // it shuts down
  kWaited = 6,       // a batch that it had entered waited; the text names the first tensor
  kIncomplete = 7,   // a batch waited for one more of its calls, which the text names
  kChangedCall = 8,  // a call of the lock came with another request; the text names the tensor
  kApart = 9,        // its calls of a batch come apart again and again; the text names a late one
};
inline constexpr int kUnlockCauses = 10;
inline constexpr size_t kMaxUnlockTextBytes = 256;

struct UnlockReason {
  UnlockCause cause = UnlockCause::kFollows;
  std::string text;  // at most kMaxUnlockTextBytes of UTF-8; empty if there is nothing to add
  // kApart and kIncomplete: the ids of the batch that were there before the others. In kFrozen
  // only.
  LockedBatch early = {};
};

bool operator==(const UnlockReason& a, const UnlockReason& b);

// What the ranks tell each other about a locked schedule (docs/adr/0045-locked-schedule.md). Fields
// that a type of frame does not use have their defaults. A value type.
struct LockMessage {
  uint64_t id = 0;  // the number of the lock among the plans; batch k is plan id + 1 + k
  // kLock: the attempt of the global process set in which the ranks are, and what they run, again
  // and again.
  uint64_t attempt = 0;
  std::vector<LockedBatch> batches;
  // kFrozen: how many batches the sender has entered; kUnlock: the least and the greatest of these.
  uint64_t entered = 0;
  uint64_t high = 0;
  // kFrozen: the sender never took the lock, so what it sent before stands.
  bool declined = false;
  // kFrozen: why; kUnlock: the same of the rank that was the first, and which this is.
  UnlockReason reason;
  Rank rank = 0;
};

bool operator==(const LockMessage& a, const LockMessage& b);

// The body of a kLock, kStop, kFrozen or kUnlock frame.
void WriteLockMessage(FrameType type, const LockMessage& message, WireWriter* out);
LockMessage ReadLockMessage(FrameType type, WireReader* in);

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

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_H_
