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

// Bulk data over MPI, between all ranks of a communicator, which nothing else uses and whose ranks
// are those of the job. A stream is a sequence of messages of at most a chunk, each of which is
// copied into a slot of this transport and out of one of the receiver's; a full set of slots is
// what makes a sender wait. Sends are synchronous ones of MPI: they are complete when the receiver
// has begun to take them, so that a peer that does not read holds a few chunks and no more,
// whatever MPI would buffer.
//
// MPI says nothing while nobody calls it. So Wait asks it again and again, at first at once and
// then at growing intervals, and what was sent needs calls until it is out (Sending). Threads as
// DataTransport says; MPI has to allow calls from any thread. The death of a peer is not noticed
// here, but over the control connections, and then Interrupt ends the wait. After an
// MPI_Finalize while nothing runs no function of MPI is called any more, and all that would need
// one fails.
class MpiDataTransport final : public DataTransport {
 public:
  // `communicator` is the Fortran number of one of `size` ranks in which this is rank `self`; the
  // transport frees it, unless something is left under way in it at the end. FailedPrecondition
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

  // Gives up what cannot be ended until `deadline`: its memory stays, as MPI may write to it.
  void Close(TimePoint deadline) override;

 private:
  struct Slot {
    std::unique_ptr<uint8_t[]> memory;
    MpiRequest request = 0;
  };
  // The slots of one direction, used in turn.
  struct Lane {
    std::vector<Slot> slots;
    size_t first = 0;     // the slot that was put into use first
    size_t busy = 0;      // slots in use, of a sender
    int64_t arrived = 0;  // bytes in the first slot, of a receiver
    int64_t used = 0;     // of them, what has been read
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
  const UniqueFd wake_;           // never read back: it stays readable
  std::vector<Lane> out_;         // by rank
  std::vector<Lane> in_;          // by rank
  std::vector<Rank> sending_to_;  // with slots in use
  std::atomic<bool> interrupted_{false};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_MPI_DATA_H_
