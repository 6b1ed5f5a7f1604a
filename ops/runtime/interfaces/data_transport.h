#ifndef TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_
#define TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/host_memory.h"

namespace tfring {

// What a sleep waits for. A peer may be in several lists.
struct WaitSet {
  std::vector<Rank> readable = {};
  std::vector<Rank> writable = {};
  std::vector<Rank> watched = {};  // an error of the stream to one of these also wakes
  TimePoint deadline = kNever;
  int also_readable = -1;  // a descriptor of a transport that uses this one
  bool sent = false;       // also wakes when nothing is Sending()
};

struct BrokenStream {
  Rank peer = kNoRank;
  Status status;
};

// Byte streams to peers for bulk data, one per peer and direction, without framing. Used by
// one thread at a time, except Interrupt(), which any thread may call. Ranks are world ranks.
class DataTransport {
 public:
  virtual ~DataTransport() = default;

  // True if there is a stream to `peer`, or its first use will make one. Until that is connected
  // nothing moves on it, as on a stream that blocks.
  virtual bool Connected(Rank peer) const = 0;

  // Move what they can without blocking and return the number of bytes. Unavailable names the peer
  // if its stream is broken.
  virtual Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) = 0;
  virtual Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) = 0;

  // If CanPeek, received data can be read where it is, without a copy: Peek gives a contiguous
  // view, empty when nothing has arrived; Consume releases its first `bytes`.
  virtual bool CanPeek(Rank) const { return false; }
  virtual Result<struct iovec> Peek(Rank) { return iovec{nullptr, 0}; }
  virtual void Consume(Rank, int64_t) {}

  // Both ends call these at the same byte of a stream: a stream in shared memory goes on at the
  // next cache line, so that both copy whole lines.
  virtual void AlignSend(Rank) {}
  virtual void AlignRecv(Rank) {}

  // Sleeps until a peer of `readable` has data, one of `writable` takes data, the deadline
  // (CLOCK_MONOTONIC) passes or Interrupt() is called; may return early. Returns a watched stream
  // that broke, which TrySend and TryRecv need not notice while no byte moves.
  virtual std::optional<BrokenStream> Wait(const WaitSet& what) = 0;

  // Whether bytes that TrySend took need further calls of this transport. Wait makes these; a
  // caller without other work waits until there are none.
  virtual bool Sending() { return false; }

  // Whether bytes that TrySend took may not have reached the peer's kernel. False if that is
  // unknown.
  virtual bool Unacknowledged(Rank) const { return false; }

  // Evidence that the path to a peer carries nothing ("3 probes without an answer"), or "". It says
  // nothing of the process at the other end.
  virtual std::string PathTrouble(Rank) const { return ""; }

  // Makes this Wait() and all later ones return at once.
  virtual void Interrupt() = 0;

  // Memory that the ranks of this host share, or null. Lives as long as this.
  virtual HostMemory* host_memory() { return nullptr; }

  // Bytes of memory that this rank has allocated for the ranks of this host to share.
  virtual int64_t memory() const { return 0; }

  // Bytes that TrySend has accepted so far.
  virtual int64_t bytes_sent() const = 0;

  // Shuts down writing on every stream and reads to end of file until `deadline`, then closes.
  virtual void Close(TimePoint deadline) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_
