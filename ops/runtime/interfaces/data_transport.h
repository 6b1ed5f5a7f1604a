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

// What a sleep waits for. Peers may stand in several lists.
struct WaitSet {
  std::vector<Rank> readable = {};
  std::vector<Rank> writable = {};
  std::vector<Rank> watched = {};  // an error of the stream to one of these ends the sleep too
  TimePoint deadline = kNever;
  int also_readable = -1;  // a descriptor, for a transport that uses another one
  bool sent = false;       // the sleep ends, too, when nothing is Sending() any more
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

  // True if there is a stream to `peer`, or there will be one when it is first used. Until then
  // nothing moves on it, and Wait waits for it as for one that blocks.
  virtual bool Connected(Rank peer) const = 0;

  // Move what can be moved without blocking; the result is the number of bytes, 0 when it would
  // block. Unavailable names the peer when its stream is broken.
  virtual Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) = 0;
  virtual Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) = 0;

  // If CanPeek, received data can be read where it is, without a copy: Peek gives a contiguous
  // view, empty when nothing has arrived; Consume releases its first `bytes`.
  virtual bool CanPeek(Rank) const { return false; }
  virtual Result<struct iovec> Peek(Rank) { return iovec{nullptr, 0}; }
  virtual void Consume(Rank, int64_t) {}

  // Both ends call these between the same two bytes of a stream, before anything else is moved: a
  // stream in shared memory goes on at the next cache line, so that both sides copy whole lines.
  virtual void AlignSend(Rank) {}
  virtual void AlignRecv(Rank) {}

  // Sleeps until one of `readable` can be received from, or one of `writable` sent to, or the
  // deadline (CLOCK_MONOTONIC) has passed, or Interrupt() has been called. May return early for no
  // reason. The result is a watched stream that broke, which TrySend and TryRecv need not notice
  // while no byte moves.
  virtual std::optional<BrokenStream> Wait(const WaitSet& what) = 0;

  // Whether bytes that TrySend took need further calls of this transport on their way. Wait makes
  // them, whatever it waits for; who has nothing else to do waits until there are none.
  virtual bool Sending() { return false; }

  // Whether bytes that TrySend took are not known to have reached the peer's kernel. False where
  // that cannot be found out.
  virtual bool Unacknowledged(Rank) const { return false; }

  // What shows that the path to a peer carries nothing ("3 probes without an answer"); empty if
  // nothing does. It cannot tell whether a process at the other end is slow.
  virtual std::string PathTrouble(Rank) const { return ""; }

  // The least time that the system has measured from this rank to `peer` and back; 0 if it has not.
  virtual Duration RoundTrip(Rank) const { return 0; }

  // Makes the present and every later Wait() return at once.
  virtual void Interrupt() = 0;

  // What the ranks of this host share besides streams; null if they do not. Lives as long as this.
  virtual HostMemory* host_memory() { return nullptr; }

  // Bytes handed to TrySend and accepted, since the beginning.
  virtual int64_t bytes_sent() const = 0;

  // Shuts down writing on every stream and reads to end of file until `deadline`, then closes.
  virtual void Close(TimePoint deadline) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_
