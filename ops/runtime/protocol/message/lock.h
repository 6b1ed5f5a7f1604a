#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_H_

#include <cstdint>
#include <vector>

namespace tfring {

class WireReader;
class WireWriter;
enum class FrameType : uint8_t;

// The cache ids of one fused allreduce.
using LockedBatch = std::vector<uint32_t>;

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
};

bool operator==(const LockMessage& a, const LockMessage& b);

// The body of a kLock, kStop, kFrozen or kUnlock frame.
void WriteLockMessage(FrameType type, const LockMessage& message, WireWriter* out);
LockMessage ReadLockMessage(FrameType type, WireReader* in);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_LOCK_H_
