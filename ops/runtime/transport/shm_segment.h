#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SHM_SEGMENT_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SHM_SEGMENT_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// Random bytes that prove that two processes have mapped the same memory.
using ShmNonce = std::array<uint8_t, 16>;

// One direction between two ranks: a byte ring with one producer and one consumer. Positions only
// grow. Producer and consumer own a cache line each. The bytes follow the headers of all rings.
struct ShmRing {
  alignas(64) std::atomic<uint64_t> written{0};
  std::atomic<uint32_t> producer_closed{0};
  alignas(64) std::atomic<uint64_t> read{0};
};
static_assert(sizeof(ShmRing) == 128, "two cache lines");

// How the owner of a segment sleeps, and so how peers wake it.
enum class ShmSleep : uint32_t {
  kAwake,
  kOnFutex,  // waits for memory only
  kInPoll,   // also waits for sockets
};

// The header of a segment. `doorbell` counts the wake-ups by peers that changed something the owner
// waits for. The owner sleeps on it as a futex; while the owner sleeps in poll, a byte in its pipe
// wakes it. While the owner waits for one rank, other ranks do not wake it.
struct ShmHeader {
  ShmNonce nonce;
  uint32_t rings = 0;
  uint64_t ring_bytes = 0;
  uint64_t part_bytes = 0;
  int32_t pipe = -1;  // descriptor of the write end, in the owner's process
  alignas(64) std::atomic<uint32_t> doorbell{0};
  std::atomic<ShmSleep> sleep{ShmSleep::kAwake};
  std::atomic<Rank> awaited{kNoRank};  // only this rank may wake the owner; kNoRank: any rank
  std::atomic<uint32_t> owner_closed{0};
};

// The memory through which one rank receives from the ranks of its host: a memfd with a header, one
// ring per sender, and a part for HostMemory. The memfd has no name in the file system, so nothing
// is left after a kill -9, and forked children do not have it. It is allocated and sealed at its
// final size, so no access to it can fault. The transport decides which rank and thread uses which
// ring. Unmaps when destroyed.
class ShmSegment {
 public:
  // Allocates a segment with `rings` rings of `ring_bytes` (a power of two) and a part of
  // `part_bytes`. Unavailable if there is not enough memory.
  static Result<std::unique_ptr<ShmSegment>> Create(uint32_t rings, uint64_t ring_bytes,
                                                    uint64_t part_bytes = 0);

  // Maps the segment that process `pid` holds as descriptor `fd`, and opens its pipe. Fails unless
  // the segment is sealed and has this shape and nonce.
  static Result<std::unique_ptr<ShmSegment>> Open(pid_t pid, int fd, const ShmNonce& nonce,
                                                  uint32_t rings, uint64_t ring_bytes,
                                                  uint64_t part_bytes = 0);

  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  ShmHeader* header() const { return static_cast<ShmHeader*>(base_); }
  // The requested shape. The header is not used for it, because a peer can change the header.
  uint32_t rings() const { return shape_.rings; }
  uint64_t ring_bytes() const { return shape_.ring_bytes; }
  uint64_t part_bytes() const { return shape_.part_bytes; }
  ShmRing* ring(uint32_t index) const;
  uint8_t* data(uint32_t index) const;
  char* part() const;
  int fd() const { return fd_.get(); }

  // Call this after you have changed, with memory_order_seq_cst, something that the owner checks
  // after it sets header()->sleep and before it sleeps. Then either the owner sees the change, or
  // this wakes it. It does not wake an owner that awaits another rank than `from`. Any thread.
  void WakeOwner(Rank from = kNoRank) const;

  // Owner only: sleeps until WakeOwner was called after `doorbell` had the value `seen`, or until
  // the deadline (CLOCK_MONOTONIC). May return early. header()->sleep is kOnFutex.
  void SleepOnFutex(uint32_t seen, TimePoint deadline) const;
  // Owner only: readable after WakeOwner was called while header()->sleep was kInPoll, until
  // EmptyPipe.
  int pipe() const { return pipe_read_.get(); }
  void EmptyPipe() const;

 private:
  struct Shape {
    uint32_t rings;
    uint64_t ring_bytes;
    uint64_t part_bytes;
    uint64_t bytes() const;  // of the whole segment
  };

  ShmSegment(void* base, const Shape& shape) : base_(base), shape_(shape) {}
  static Result<std::unique_ptr<ShmSegment>> Map(int fd, const Shape& shape);
  Status MakePipe();
  Status OpenPipe(pid_t owner);

  UniqueFd fd_;  // owner only
  void* base_;
  Shape shape_;
  UniqueFd pipe_read_;  // owner only
  UniqueFd pipe_write_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SHM_SEGMENT_H_
