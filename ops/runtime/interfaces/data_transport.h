#ifndef TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_
#define TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Byte streams to peers for bulk data, one per peer and direction, without framing. Used by the
// data thread alone, except Interrupt(), which any thread may call. Ranks are world ranks.
class DataTransport {
 public:
  virtual ~DataTransport() = default;

  // True if there is a stream to `peer` (large jobs connect ring neighbours only).
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

  // Sleeps until one of `readable` can be received from, or one of `writable` sent to, or
  // Interrupt() has been called. May return early for no reason.
  virtual void Wait(const std::vector<Rank>& readable, const std::vector<Rank>& writable) = 0;

  // Makes the present and every later Wait() return at once.
  virtual void Interrupt() = 0;

  // Bytes handed to TrySend and accepted, since the beginning.
  virtual int64_t bytes_sent() const = 0;

  // Shuts down writing on every stream and reads to end of file until `deadline`, then closes.
  virtual void Close(TimePoint deadline) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_DATA_TRANSPORT_H_
