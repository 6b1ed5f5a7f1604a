#include "ops/runtime/transport/tcp_data.h"

#include <limits.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr int kSocketBufferBytes = 2 << 20;
// There is no event for "everything was acknowledged", so Close checks at this interval.
constexpr Duration kCloseCheck = 2 * kMillisecond;

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

// True once nothing can be lost by closing: the peer has closed too, or has received everything.
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
    std::map<Rank, UniqueFd> sockets) {
  for (const auto& [rank, socket] : sockets) {
    const std::string who = "data connection to rank " + std::to_string(rank);
    if (rank < 0) return InvalidArgument(who + ": no such rank");
    Status prepared = PrepareSocket(socket.get());
    if (!prepared.ok()) return Status(prepared.code(), who + ": " + prepared.message());
    WidenBuffers(socket.get(), kSocketBufferBytes);
  }
  Result<UniqueFd> interrupt = NewEventFd();
  if (!interrupt.ok()) return interrupt.status();
  return std::unique_ptr<TcpDataTransport>(
      new TcpDataTransport(std::move(sockets), std::move(*interrupt)));
}

TcpDataTransport::TcpDataTransport(std::map<Rank, UniqueFd> sockets, UniqueFd interrupt)
    : sockets_(std::move(sockets)), interrupt_(std::move(interrupt)) {
  for (const auto& [rank, socket] : sockets_) {
    fds_.resize(std::max(fds_.size(), static_cast<size_t>(rank) + 1), -1);
    fds_[static_cast<size_t>(rank)] = socket.get();
  }
}

Result<int64_t> TcpDataTransport::TrySend(Rank to, const struct iovec* iov, int count) {
  const struct msghdr message = Message(iov, count);
  const ssize_t n = sendmsg(SocketOf(to), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    bytes_sent_.fetch_add(n, std::memory_order_relaxed);
    return static_cast<int64_t>(n);
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return int64_t{0};
  return Broken(to, "to", ErrnoText(errno));
}

Result<int64_t> TcpDataTransport::TryRecv(Rank from, const struct iovec* iov, int count) {
  struct msghdr message = Message(iov, count);
  const ssize_t n = recvmsg(SocketOf(from), &message, MSG_DONTWAIT);
  if (n > 0) return static_cast<int64_t>(n);
  if (n == 0) {
    if (Empty(iov, count)) return int64_t{0};
    return Broken(from, "from", "the peer closed it");
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return int64_t{0};
  return Broken(from, "from", ErrnoText(errno));
}

void TcpDataTransport::Wait(const std::vector<Rank>& readable, const std::vector<Rank>& writable) {
  polled_.clear();
  polled_.push_back({interrupt_.get(), POLLIN, 0});
  for (Rank peer : readable) polled_.push_back({SocketOf(peer), POLLIN, 0});
  for (Rank peer : writable) {
    const int fd = SocketOf(peer);
    auto same = std::find_if(polled_.begin(), polled_.end(),
                             [fd](const struct pollfd& p) { return p.fd == fd; });
    if (same == polled_.end())
      polled_.push_back({fd, POLLOUT, 0});
    else
      same->events |= POLLOUT;
  }
  (void)poll(polled_.data(), polled_.size(), -1);
}

void TcpDataTransport::Interrupt() { SignalEventFd(interrupt_); }

void TcpDataTransport::Close(TimePoint deadline) {
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
