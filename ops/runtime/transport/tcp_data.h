#ifndef TFRING_OPS_RUNTIME_TRANSPORT_TCP_DATA_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_TCP_DATA_H_

#include <poll.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/data_transport.h"
#include "ops/runtime/transport/peer_connector.h"
#include "ops/runtime/transport/socket_util.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// Bulk data over non-blocking stream sockets, one per peer. Some are connected at the start. A
// PeerConnector connects the others when this rank first sends to the peer or receives from it; no
// byte moves until then. Threads as DataTransport says. Lives for one generation. The destructor
// closes connections that Close has not closed, without waiting.
class TcpDataTransport final : public DataTransport {
 public:
  // InvalidArgument names the rank whose descriptor is not a socket. `probe` is the idle time after
  // which the kernel probes the path, and the interval between probes. The stream breaks after
  // several probes without an answer. `connector`, if not null, connects to the ranks that are not
  // in `sockets`.
  static Result<std::unique_ptr<TcpDataTransport>> Create(
      std::map<Rank, UniqueFd> sockets, Duration probe = 5 * kSecond,
      std::unique_ptr<PeerConnector> connector = nullptr);

  bool Connected(Rank peer) const override;
  Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override;
  Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override;
  std::optional<BrokenStream> Wait(const WaitSet& what) override;
  bool Unacknowledged(Rank peer) const override;
  std::string PathTrouble(Rank peer) const override;
  void Interrupt() override;
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

  // Does not wait for a peer whose kernel has acknowledged all sent bytes: closing then loses
  // nothing, even if the peer runs for hours.
  void Close(TimePoint deadline) override;

 private:
  TcpDataTransport(Duration probe, std::unique_ptr<PeerConnector> connector, UniqueFd interrupt);
  void Adopt(Rank peer, UniqueFd socket);
  Result<int> Reach(Rank peer);
  int SocketOf(Rank peer) const {
    return peer >= 0 && static_cast<size_t>(peer) < fds_.size() ? fds_[static_cast<size_t>(peer)]
                                                                : -1;
  }

  const Duration probe_;
  std::unique_ptr<PeerConnector> connector_;
  std::map<Rank, UniqueFd> sockets_;
  std::vector<int> fds_;               // by rank; -1: no stream
  UniqueFd interrupt_;                 // never drained: it stays readable
  std::vector<struct pollfd> polled_;  // Wait's, kept for its memory, as is the next
  std::vector<Rank> polled_peers_;
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_TCP_DATA_H_
