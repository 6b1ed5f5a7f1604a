#include "ops/runtime/transport/tcp_data.h"

#include <limits.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr int kSocketBufferBytes = 2 << 20;
// There is no event for "everything is acknowledged", so Close checks at this interval.
constexpr Duration kCloseCheck = 2 * kMillisecond;
// One retransmission or one lost probe is common on a path that works.
constexpr int kSignsOfTrouble = 2;

struct msghdr Message(const struct iovec* iov, int count) {
  struct msghdr message{};
  message.msg_iov = const_cast<struct iovec*>(iov);  // the kernel does not write to it
  message.msg_iovlen = static_cast<size_t>(std::min(count, IOV_MAX));
  return message;
}

bool Empty(const struct iovec* iov, int count) {
  return std::all_of(iov, iov + count, [](const struct iovec& v) { return v.iov_len == 0; });
}

Status Broken(Rank peer, const char* verb, const std::string& why) {
  return Unavailable(std::string("the data connection ") + verb + " rank " + std::to_string(peer) +
                     " broke: " + why);
}

// Returns the bytes that the peer's kernel has not acknowledged; 0 if the system cannot tell.
int UnacknowledgedBytes(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

// Returns whether poll found the stream broken. A stream that hung up may still have bytes to read.
bool IsBroken(const struct pollfd& polled) {
  if ((polled.revents & POLLERR) != 0) return true;
  int unread = 0;
  return (polled.revents & POLLHUP) != 0 && ioctl(polled.fd, FIONREAD, &unread) == 0 && unread == 0;
}

// True once closing loses nothing: the peer has closed too, or its kernel has received everything.
bool SafeToClose(int fd) {
  static thread_local char sink[64 << 10];
  for (int i = 0; i < 64; ++i) {
    const ssize_t n = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return true;
    break;
  }
  int unacknowledged = 0;
  return ioctl(fd, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
}

}  // namespace

Result<std::unique_ptr<TcpDataTransport>> TcpDataTransport::Create(
    std::map<Rank, UniqueFd> sockets, Duration probe, std::unique_ptr<PeerConnector> connector) {
  Result<UniqueFd> interrupt = NewEventFd();
  if (!interrupt.ok()) return interrupt.status();
  std::unique_ptr<TcpDataTransport> transport(
      new TcpDataTransport(probe, std::move(connector), std::move(*interrupt)));
  for (auto& [rank, socket] : sockets) {
    const std::string who = "data connection to rank " + std::to_string(rank);
    if (rank < 0) return InvalidArgument(who + ": no such rank");
    Status prepared = PrepareSocket(socket.get());
    if (!prepared.ok()) return Status(prepared.code(), who + ": " + prepared.message());
    transport->Adopt(rank, std::move(socket));
  }
  return transport;
}

TcpDataTransport::TcpDataTransport(Duration probe, std::unique_ptr<PeerConnector> connector,
                                   UniqueFd interrupt)
    : probe_(probe), connector_(std::move(connector)), interrupt_(std::move(interrupt)) {}

void TcpDataTransport::Adopt(Rank peer, UniqueFd socket) {
  WidenBuffers(socket.get(), kSocketBufferBytes);
  KeepAlive(socket.get(), probe_);
  fds_.resize(std::max(fds_.size(), static_cast<size_t>(peer) + 1), -1);
  fds_[static_cast<size_t>(peer)] = socket.get();
  sockets_[peer] = std::move(socket);
}

bool TcpDataTransport::Connected(Rank peer) const {
  return SocketOf(peer) >= 0 || (connector_ != nullptr && connector_->Reaches(peer));
}

// Returns the socket to `peer`; -1 until there is one.
Result<int> TcpDataTransport::Reach(Rank peer) {
  if (SocketOf(peer) >= 0 || connector_ == nullptr) return SocketOf(peer);
  TFRING_RETURN_IF_ERROR(connector_->Advance(peer));
  for (auto& [rank, socket] : connector_->TakeReady()) {
    if (SocketOf(rank) >= 0) continue;  // there is a socket already; this one is closed
    TFRING_RETURN_IF_ERROR(PrepareSocket(socket.get()));
    Adopt(rank, std::move(socket));
  }
  return SocketOf(peer);
}

Result<int64_t> TcpDataTransport::TrySend(Rank to, const struct iovec* iov, int count) {
  const Result<int> socket = Reach(to);
  if (!socket.ok()) return socket.status();
  if (*socket < 0 && connector_ != nullptr) return int64_t{0};
  const struct msghdr message = Message(iov, count);
  const ssize_t n = sendmsg(*socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    bytes_sent_.fetch_add(n, std::memory_order_relaxed);
    return static_cast<int64_t>(n);
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return int64_t{0};
  return Broken(to, "to", ErrnoText(errno));
}

Result<int64_t> TcpDataTransport::TryRecv(Rank from, const struct iovec* iov, int count) {
  const Result<int> socket = Reach(from);
  if (!socket.ok()) return socket.status();
  if (*socket < 0 && connector_ != nullptr) return int64_t{0};
  struct msghdr message = Message(iov, count);
  const ssize_t n = recvmsg(*socket, &message, MSG_DONTWAIT);
  if (n > 0) return static_cast<int64_t>(n);
  if (n == 0) {
    if (Empty(iov, count)) return int64_t{0};
    return Broken(from, "from", "the peer closed it");
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return int64_t{0};
  return Broken(from, "from", ErrnoText(errno));
}

std::optional<BrokenStream> TcpDataTransport::Wait(const WaitSet& what) {
  polled_.clear();
  polled_peers_.clear();
  bool connecting = false;
  const auto add = [this, &connecting](Rank peer, short events) {
    if (SocketOf(peer) < 0) {
      connecting |= connector_ != nullptr && events != 0;
      return;
    }
    const auto same = std::find(polled_peers_.begin(), polled_peers_.end(), peer);
    if (same != polled_peers_.end()) {
      polled_[static_cast<size_t>(same - polled_peers_.begin())].events |= events;
      return;
    }
    polled_.push_back({SocketOf(peer), events, 0});
    polled_peers_.push_back(peer);
  };
  for (Rank peer : what.readable) add(peer, POLLIN);
  for (Rank peer : what.writable) add(peer, POLLOUT);
  for (Rank peer : what.watched) add(peer, 0);  // poll always reports errors
  const size_t streams = polled_.size();
  polled_.push_back({interrupt_.get(), POLLIN, 0});
  polled_.push_back({what.also_readable, POLLIN, 0});  // ignored if -1
  polled_.push_back({connecting ? connector_->fd() : -1, POLLIN, 0});
  const TimePoint deadline =
      connecting ? std::min(what.deadline, connector_->NextAttempt()) : what.deadline;
  const int timeout = deadline == kNever ? -1 : MillisecondsUntil(deadline, MonotonicNow());
  if (poll(polled_.data(), polled_.size(), timeout) <= 0) return std::nullopt;
  for (size_t i = 0; i < streams; ++i) {
    // Reading an awaited stream finds the error after the bytes that came before it.
    if (polled_[i].events != 0 || !IsBroken(polled_[i])) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)getsockopt(polled_[i].fd, SOL_SOCKET, SO_ERROR, &error, &size);
    const std::string why = error == 0 ? "the peer closed it" : ErrnoText(error);
    return BrokenStream{polled_peers_[i], Broken(polled_peers_[i], "to", why)};
  }
  return std::nullopt;
}

bool TcpDataTransport::Unacknowledged(Rank peer) const {
  return UnacknowledgedBytes(SocketOf(peer)) > 0;
}

std::string TcpDataTransport::PathTrouble(Rank peer) const {
  if (SocketOf(peer) < 0 && connector_ != nullptr) return connector_->Trouble(peer);
  struct tcp_info info{};
  socklen_t size = sizeof(info);
  // Fails on sockets other than TCP; they have no path to lose.
  if (getsockopt(SocketOf(peer), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return "";
  if (info.tcpi_unacked > 0 && info.tcpi_retransmits >= kSignsOfTrouble) {
    return std::to_string(UnacknowledgedBytes(SocketOf(peer))) +
           " bytes are not acknowledged after " + std::to_string(info.tcpi_retransmits) +
           " retransmissions";
  }
  if (info.tcpi_probes >= kSignsOfTrouble) {
    return std::to_string(info.tcpi_probes) + " probes have had no answer";
  }
  return "";
}

void TcpDataTransport::Interrupt() { SignalEventFd(interrupt_); }

void TcpDataTransport::Close(TimePoint deadline) {
  connector_.reset();
  for (const auto& [rank, socket] : sockets_) shutdown(socket.get(), SHUT_WR);
  while (!sockets_.empty()) {
    for (auto it = sockets_.begin(); it != sockets_.end();) {
      it = SafeToClose(it->second.get()) ? sockets_.erase(it) : std::next(it);
    }
    const TimePoint now = MonotonicNow();
    if (sockets_.empty() || now >= deadline) break;
    (void)poll(nullptr, 0, MillisecondsUntil(std::min(deadline, now + kCloseCheck), now));
  }
  sockets_.clear();
  std::fill(fds_.begin(), fds_.end(), -1);
}

}  // namespace tfring
