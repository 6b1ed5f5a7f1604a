#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SHM_DATA_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SHM_DATA_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/data_transport.h"
#include "ops/runtime/transport/shm_handshake.h"
#include "ops/runtime/transport/shm_host_memory.h"
#include "ops/runtime/transport/shm_segment.h"

namespace tfring {

// Whether the ranks of a host share memory: never, where they can, or always (else init fails).
enum class ShmUse { kNever, kWherePossible, kRequired };

// Moves bytes between ranks of this host through shared memory, and to and from all other ranks
// through the transport `base`. Each rank has a segment with one ring buffer per peer, which the
// peer writes and the rank reads. A rank that waits for memory alone sleeps on a futex in its
// segment. A rank that also waits for sockets sleeps in poll, with a pipe that peers write to. A
// peer that changes an awaited ring wakes the sleeper; no sleeper polls. Threads as
// DataTransport says. A peer that closes is a broken stream. The control connections notice the
// death of a peer, and Interrupt then ends the wait. A mapping stays valid when its owner's process
// ends.
class ShmDataTransport final : public DataTransport {
 public:
  // Agrees with every peer in `peers`, over its data socket, whether the two share memory; if not,
  // they use `base`, which is returned itself if this rank has no memory to share. All peers must
  // call this at the same time. Unavailable if one does not answer until `deadline`. With kNever
  // this rank takes part in the agreement but shares no memory; with kRequired it is
  // FailedPrecondition that one of them uses `base`. `self` is this rank, if it is to have a part
  // of a HostMemory.
  static Result<std::unique_ptr<DataTransport>> Connect(ShmUse use,
                                                        const std::vector<ShmPeer>& peers,
                                                        std::unique_ptr<DataTransport> base,
                                                        TimePoint deadline, Rank self = kNoRank);
  ~ShmDataTransport() override;

  bool Connected(Rank peer) const override;
  Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override;
  Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override;
  Result<struct iovec> Peek(Rank from) override;
  void Consume(Rank from, int64_t bytes) override;
  bool CanPeek(Rank from) const override;
  void AlignSend(Rank to) override;
  void AlignRecv(Rank from) override;
  std::optional<BrokenStream> Wait(const WaitSet& what) override;
  bool Sending() override { return base_->Sending(); }
  bool Unacknowledged(Rank peer) const override;
  std::string PathTrouble(Rank peer) const override;
  void Interrupt() override;
  int64_t bytes_sent() const override;
  int64_t memory() const override;
  HostMemory* host_memory() override { return host_memory_.get(); }
  // The ranks reached through shared memory.
  const std::vector<Rank>& shared() const { return shared_; }
  void Close(TimePoint deadline) override;

 private:
  struct RingPair;  // the rings between this rank and one peer

  ShmDataTransport(std::unique_ptr<ShmSegment> own, std::unique_ptr<DataTransport> base);
  void AddPair(ShmAgreement agreement);
  void MakeHostMemory(Rank self);
  RingPair* Find(Rank peer) const;
  bool Ready(const std::vector<Rank>& readable, const std::vector<Rank>& writable) const;
  void ListSockets(const WaitSet& what);

  std::unique_ptr<ShmSegment> own_;
  std::unique_ptr<DataTransport> base_;
  std::vector<std::unique_ptr<RingPair>> pairs_;  // by rank; null where `base_` is used
  std::vector<Rank> shared_;
  std::unique_ptr<ShmHostMemory> host_memory_;  // null unless all of `shared_` agree
  WaitSet sockets_;                             // Wait's, kept for its memory
  std::atomic<bool> interrupted_{false};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SHM_DATA_H_
