#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SHM_DATA_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SHM_DATA_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/runtime/interfaces/data_transport.h"
#include "ops/runtime/transport/shm_handshake.h"
#include "ops/runtime/transport/shm_segment.h"

namespace tfring {

// Bytes through shared memory to the ranks of this host, through `base` to all others. Threads as
// DataTransport says. A peer that closes shows like a broken stream; one that is killed does not
// show here at all: the control plane notices, and Interrupt ends every wait. Peers must outlive
// nothing: a mapping stays valid when its owner is gone.
class ShmDataTransport final : public DataTransport {
 public:
  // Agrees with every peer in `peers` over its data socket, in both directions, whether they share
  // memory; a pair that does not stays with `base`, and so do all if none can be had. All peers
  // must call this at the same time. Unavailable if one does not answer until `deadline`.
  // With `offer` false this rank takes part in the agreement but shares nothing.
  static Result<std::unique_ptr<DataTransport>> Connect(bool offer,
                                                        const std::vector<ShmPeer>& peers,
                                                        std::unique_ptr<DataTransport> base,
                                                        TimePoint deadline);
  ~ShmDataTransport() override;

  bool Connected(Rank peer) const override;
  Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override;
  Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override;
  Result<struct iovec> Peek(Rank from) override;
  void Consume(Rank from, int64_t bytes) override;
  bool CanPeek(Rank from) const override;
  void Wait(const std::vector<Rank>& readable, const std::vector<Rank>& writable) override;
  void Interrupt() override;
  int64_t bytes_sent() const override;
  // The ranks that are reached through memory.
  const std::vector<Rank>& shared() const { return shared_; }
  void Close(TimePoint deadline) override;

 private:
  struct Pair;  // one peer: its segment, and the rings of both directions

  ShmDataTransport(std::unique_ptr<ShmSegment> own, std::unique_ptr<DataTransport> base);
  void AddPair(ShmAgreement agreement);
  Pair* Find(Rank peer) const;
  bool Ready(const std::vector<Rank>& readable, const std::vector<Rank>& writable) const;
  void Sleep(uint32_t doorbell_seen, bool sockets_too) const;

  std::unique_ptr<ShmSegment> own_;
  std::unique_ptr<DataTransport> base_;
  std::vector<std::unique_ptr<Pair>> pairs_;  // by rank; null where base_ serves
  std::vector<Rank> shared_;
  std::atomic<bool> interrupted_{false};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SHM_DATA_H_
