#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_WIRE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// A rank that shuts down.
struct Departure {
  Rank rank = kNoRank;
  std::string error;  // the exception with which its process ends; empty if there was none
};
inline constexpr size_t kMaxDepartureError = 512;  // bytes of UTF-8; see Shortened

// First byte of every control frame. Values are part of the wire format.
enum class FrameType : uint8_t {
  kRequests = 1,   // rank to sequencer: full requests and cache ids
  kPlans = 2,      // sequencer to member
  kHeartbeat = 3,  // either way, empty
  kAbort = 4,      // sequencer to all: the generation is over, with this status
  kGoodbye = 5,    // ranks shut down: from a rank itself, from the sequencer any
  kFault = 6,      // rank to sequencer: why `rank` may be gone or has left, or what failed here
  kWithdraw = 7,   // rank to sequencer: from here on I am in the next attempt of the process set
  kLock = 8,       // sequencer to all: from here on this repeats without requests and plans
  kStop = 9,       // sequencer to all: enter no more batches of the lock
  kFrozen = 10,    // rank to sequencer: I enter no more batches; requests follow again
  kUnlock = 11,    // sequencer to all: the lock is over; which batches run and which do not
};
inline constexpr uint8_t kMaxFrameType = 11;

// Any control frame; the fields that its type does not use stay empty.
struct Frame {
  FrameType type = FrameType::kHeartbeat;
  std::vector<Request> requests;    // kRequests
  std::vector<uint32_t> cache_ids;  // kRequests
  std::vector<Plan> plans;          // kPlans
  // kAbort: the rank that was lost or has left, or kNoRank; kFault: the suspect, or the sender.
  Rank rank = kNoRank;
  std::vector<Departure> departures;             // kGoodbye
  ProcessSetId process_set = kGlobalProcessSet;  // kWithdraw
  LockMessage lock;                              // kLock, kStop, kFrozen, kUnlock
  Status status;  // kAbort, kFault; kWithdraw: why my step failed, ok if the attempt was over
};

std::string EncodeFrame(const Frame& frame);

// Treats every byte as hostile: bounds every length by what is left of the input, allocates no
// more than its size and WireReader::kMaxMemory, and refuses unknown enums and trailing bytes.
Result<Frame> DecodeFrame(std::string_view bytes);

inline constexpr size_t kMaxFrameBytes = 64u << 20;

// Upper bounds of the encoded size, to keep batches below kMaxFrameBytes.
size_t MaxEncodedBytes(const Request& request);
size_t MaxEncodedBytes(const Plan& plan);

inline constexpr size_t kNonceBytes = sizeof(uint64_t);

// Adds to an encoded frame the nonce of the generation that it belongs to; 0: adds nothing.
void AddNonce(uint64_t nonce, std::string* frame);

// Takes the nonce off. FailedPrecondition if there is none, or that of another generation.
Status TakeNonce(uint64_t nonce, std::string_view* frame);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_WIRE_H_
