#ifndef TFRING_OPS_RUNTIME_TRANSPORT_MPI_DATA_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_MPI_DATA_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/runtime/interfaces/data_transport.h"
#include "ops/runtime/transport/mpi_functions.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// Bulk data over MPI between all ranks of a communicator. The communicator has the ranks of the
// job, and nothing else uses it. A stream is a sequence of messages of at most one chunk. Each
// message is copied into a slot of the sender and out of a slot of the receiver. A sender waits
// when all its slots are full. Sends are synchronous MPI sends: a send completes when the receiver
// has begun to take the message. So a peer that does not read holds only a few chunks, whatever MPI
// would buffer.
//
// MPI makes no progress while nobody calls it. So Wait polls, first without a pause and then at
// growing intervals, and sends need calls until they are complete (Sending). Threads as
// DataTransport says; MPI must allow calls from any thread. The control connections notice the
// death of a peer, and Interrupt then ends the wait. After MPI_Finalize the transport calls no MPI
// function, and every operation that needs one fails.
class MpiDataTransport final : public DataTransport {
 public:
  // `communicator` is the Fortran number of a communicator of `size` ranks, in which this is rank
  // `self`. The transport frees it, unless a request is still open at the end. FailedPrecondition
  // says why MPI cannot be used.
  static Result<std::unique_ptr<MpiDataTransport>> Create(const MpiFunctions* mpi, int communicator,
                                                          Rank self, int size);
  ~MpiDataTransport() override;

  bool Connected(Rank peer) const override { return peer >= 0 && peer < size_ && peer != self_; }
  Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override;
  Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override;
  bool CanPeek(Rank) const override { return true; }
  Result<struct iovec> Peek(Rank from) override;
  void Consume(Rank from, int64_t bytes) override;
  std::optional<BrokenStream> Wait(const WaitSet& what) override;
  bool Sending() override;
  bool Unacknowledged(Rank peer) const override;
  void Interrupt() override;
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

  // Keeps the memory of requests that do not end by `deadline`: MPI may still write to it.
  void Close(TimePoint deadline) override;

 private:
  struct Slot {
    std::unique_ptr<uint8_t[]> memory;
    MpiRequest request = 0;
  };
  // The slots of one direction, used in turn.
  struct Lane {
    std::vector<Slot> slots;
    size_t first = 0;     // the oldest slot in use
    size_t busy = 0;      // sender: slots in use
    int64_t arrived = 0;  // receiver: bytes in the first slot
    int64_t used = 0;     // receiver: bytes of the first slot that are read
    Status broken = OkStatus();
  };

  MpiDataTransport(const MpiFunctions* mpi, void* communicator, Rank self, int size, UniqueFd wake);
  Status Check(int code, const char* during, Rank peer) const;
  void MakeSlots(Lane* lane) const;
  void Reap(Rank to, Lane* lane);
  Status Listen(Rank from, Lane* lane);
  Status Post(Rank from, Lane* lane, size_t slot);
  bool Ready(const WaitSet& what);
  std::optional<BrokenStream> FirstBroken(const std::vector<Rank>& peers) const;
  bool EndReceives(TimePoint deadline);

  const MpiFunctions* const mpi_;
  void* communicator_;  // null after Close
  const Rank self_;
  const int size_;
  const int64_t chunk_bytes_;
  const UniqueFd wake_;           // never drained: it stays readable
  std::vector<Lane> out_;         // by rank
  std::vector<Lane> in_;          // by rank
  std::vector<Rank> sending_to_;  // ranks with slots in use
  std::atomic<bool> interrupted_{false};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_MPI_DATA_H_
