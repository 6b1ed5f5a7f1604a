#include "ops/runtime/transport/tcp_control.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
// After this many reads from one peer the others get their turn; epoll reports the rest again.
constexpr int kReadsPerWait = 16;
constexpr int kEventsPerWait = 64;
// The stream of a dead peer ends, but a forked child that is alive could write forever.
constexpr int kReadsAfterEnd = 1 << 20;

// The data of an epoll event is a link's index and one of these tags.
constexpr uint64_t kSocketTag = 0;
constexpr uint64_t kPidTag = 1;
constexpr uint64_t kWakeTag = 2;
constexpr uint64_t kProcessTag = 3;  // the index is in processes_
constexpr int kTagBits = 2;

std::string ProcessEnded(int64_t pid) {
  return "process " + std::to_string(pid) + " on this host ended";
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

struct TcpControlTransport::Link {
  explicit Link(const Peer& peer) : sent(peer.send_key), received(peer.receive_key) {}

  Rank rank = kNoRank;
  int64_t pid = 0;
  UniqueFd socket;
  UniqueFd pidfd;
  uint64_t index = 0;
  FrameReader reader;
  FrameMac sent;
  FrameMac received;
  std::string out;  // accepted by Send, not yet by the socket
  size_t out_sent = 0;
  std::string write_error;
  bool watching_writable = false;
  bool lost = false;
};

Result<std::unique_ptr<TcpControlTransport>> TcpControlTransport::Create(
    std::vector<Peer> peers, const std::map<Rank, int64_t>& processes) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Internal("epoll_create1: " + ErrnoText(errno));
  Result<UniqueFd> wake = NewEventFd();
  if (!wake.ok()) return wake.status();
  std::unique_ptr<TcpControlTransport> transport(
      new TcpControlTransport(std::move(epoll), std::move(*wake)));
  // Edge-triggered: each Wake is an edge, so nobody has to read the counter.
  TFRING_RETURN_IF_ERROR(transport->Register(transport->wake_.get(), EPOLLIN | EPOLLET, kWakeTag));
  for (Peer& peer : peers) TFRING_RETURN_IF_ERROR(transport->AddLink(std::move(peer)));
  for (const auto& [rank, pid] : processes) {
    if (transport->Find(rank) == nullptr) TFRING_RETURN_IF_ERROR(transport->AddProcess(rank, pid));
  }
  return transport;
}

TcpControlTransport::TcpControlTransport(UniqueFd epoll, UniqueFd wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)), buffer_(kBufferBytes) {}

TcpControlTransport::~TcpControlTransport() = default;

Status TcpControlTransport::Register(int fd, uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return OkStatus();
  return Internal("epoll_ctl: " + ErrnoText(errno));
}

Status TcpControlTransport::AddLink(Peer peer) {
  const std::string who = "control connection to rank " + std::to_string(peer.rank);
  if (peer.rank < 0 || Find(peer.rank) != nullptr) {
    return InvalidArgument(who + ": no such rank, or given twice");
  }
  const auto fits = [](const std::string& key) { return key.size() == kMacKeyBytes; };
  const bool keyed = fits(peer.send_key) && fits(peer.receive_key);
  if (!keyed && !(peer.send_key.empty() && peer.receive_key.empty())) {
    return InvalidArgument(who + ": its keys have " + std::to_string(peer.send_key.size()) +
                           " and " + std::to_string(peer.receive_key.size()) +
                           " bytes; give two keys of " + std::to_string(kMacKeyBytes) +
                           " bytes, or none");
  }
  Status prepared = PrepareSocket(peer.socket.get());
  if (!prepared.ok()) return Status(prepared.code(), who + ": " + prepared.message());
  auto link = std::make_unique<Link>(peer);
  link->rank = peer.rank;
  link->pid = peer.pid;
  link->socket = std::move(peer.socket);
  link->index = links_.size() << kTagBits;
  TFRING_RETURN_IF_ERROR(Register(link->socket.get(), EPOLLIN, link->index | kSocketTag));
  if (peer.pid > 0) {
    link->pidfd = OpenPidFd(peer.pid);
    if (link->pidfd.valid()) {
      TFRING_RETURN_IF_ERROR(Register(link->pidfd.get(), EPOLLIN, link->index | kPidTag));
    }
  }
  const auto rank = static_cast<size_t>(link->rank);
  if (by_rank_.size() <= rank) by_rank_.resize(rank + 1);
  by_rank_[rank] = link.get();
  links_.push_back(std::move(link));
  return OkStatus();
}

Status TcpControlTransport::AddProcess(Rank rank, int64_t pid) {
  UniqueFd pidfd = OpenPidFd(pid);
  if (!pidfd.valid()) return OkStatus();  // an old kernel, or it has ended: rank 0 notices it
  const uint64_t tag = (processes_.size() << kTagBits) | kProcessTag;
  TFRING_RETURN_IF_ERROR(Register(pidfd.get(), EPOLLIN, tag));
  processes_.push_back({rank, pid, std::move(pidfd)});
  return OkStatus();
}

TcpControlTransport::Link* TcpControlTransport::Find(Rank rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= by_rank_.size()) return nullptr;
  return by_rank_[static_cast<size_t>(rank)];
}

void TcpControlTransport::Wake() { SignalEventFd(wake_); }

void TcpControlTransport::Send(Rank to, std::string frame) {
  std::lock_guard<std::mutex> lock(mutex_);
  Link* link = Find(to);
  if (link == nullptr || link->lost || !link->write_error.empty()) return;
  if (frame.size() > kMaxStreamFrameBytes - kMacBytes) {
    return FailWriting(link, "a control frame of " + std::to_string(frame.size()) +
                                 " bytes for it is over the limit of " +
                                 std::to_string(kMaxStreamFrameBytes - kMacBytes));
  }
  const auto length = FrameHeader(frame.size() + link->sent.bytes());
  std::string header(length.data(), length.size());
  header += link->sent.Next(frame);
  size_t sent = 0;
  if (link->out.empty()) {
    // Send now and not in the next Wait, so that the peer can start.
    struct iovec parts[2] = {{header.data(), header.size()}, {frame.data(), frame.size()}};
    struct msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(link->socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && !WouldBlock(errno) && errno != EINTR) return FailWriting(link, ErrnoText(errno));
    sent = n > 0 ? static_cast<size_t>(n) : 0;
  }
  if (sent < header.size()) {
    link->out.append(header.data() + sent, header.size() - sent);
    sent = header.size();
  }
  link->out.append(frame, sent - header.size());
  WatchWritable(link, !link->out.empty());
}

void TcpControlTransport::Flush(Link* link) {
  while (link->out_sent < link->out.size()) {
    const ssize_t n = send(link->socket.get(), link->out.data() + link->out_sent,
                           link->out.size() - link->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && WouldBlock(errno)) return;
    if (n < 0) return FailWriting(link, ErrnoText(errno));
    link->out_sent += static_cast<size_t>(n);
  }
  link->out.clear();
  link->out.shrink_to_fit();
  link->out_sent = 0;
  WatchWritable(link, false);
}

void TcpControlTransport::WatchWritable(Link* link, bool on) {
  if (link->watching_writable == on) return;
  link->watching_writable = on;
  epoll_event event{};
  event.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = link->index | kSocketTag;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link->socket.get(), &event);
}

void TcpControlTransport::FailWriting(Link* link, std::string reason) {
  if (link->lost || !link->write_error.empty()) return;
  link->write_error = std::move(reason);
  link->out.clear();
  link->out_sent = 0;
  WatchWritable(link, false);
  failed_writes_.push_back(link);
  Wake();  // Wait reports it
}

void TcpControlTransport::ReportFailedWrites(std::vector<ControlEvent>* events) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < failed_writes_.size(); ++i) {
    Link* link = failed_writes_[i];
    if (!link->lost) ReadToEnd(link, link->write_error, events);
  }
  failed_writes_.clear();
}

TcpControlTransport::Reading TcpControlTransport::ReadOnce(Link* link,
                                                           std::vector<ControlEvent>* events,
                                                           std::string* reason) {
  const ssize_t n = recv(link->socket.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return Reading::kFull;
  if (n < 0 && WouldBlock(errno)) return Reading::kBlocked;
  if (n <= 0) {
    *reason = n == 0 ? "connection closed" : ErrnoText(errno);
    return Reading::kEnded;
  }
  bool forged = false;
  const Status fed =
      link->reader.Feed({buffer_.data(), static_cast<size_t>(n)}, [&](std::string frame) {
        forged = forged || !link->received.Check(&frame);
        if (forged) return;
        events->push_back({ControlEvent::Kind::kFrame, link->rank, std::move(frame), ""});
      });
  if (!fed.ok() || forged) {
    *reason = forged ? "a message on the connection was not sent by it, or was changed on its way: "
                       "somebody interferes with the network between the hosts"
                     : fed.message();
    return Reading::kEnded;
  }
  return static_cast<size_t>(n) == buffer_.size() ? Reading::kFull : Reading::kPart;
}

void TcpControlTransport::ReadSome(Link* link, std::vector<ControlEvent>* events) {
  const size_t before = events->size();
  std::string reason;
  for (int i = 0; i < kReadsPerWait; ++i) {
    const Reading reading = ReadOnce(link, events, &reason);
    if (reading == Reading::kEnded) return ReportLoss(link, std::move(reason), events);
    if (reading != Reading::kFull) break;
  }
  if (events->size() == before) {
    events->push_back({ControlEvent::Kind::kAlive, link->rank, "", ""});
  }
}

void TcpControlTransport::ReadToEnd(Link* link, std::string reason,
                                    std::vector<ControlEvent>* events) {
  std::string ignored;
  for (int i = 0; i < kReadsAfterEnd; ++i) {
    const Reading reading = ReadOnce(link, events, &ignored);
    if (reading == Reading::kBlocked || reading == Reading::kEnded) break;
  }
  ReportLoss(link, std::move(reason), events);
}

void TcpControlTransport::ReportLoss(Link* link, std::string reason,
                                     std::vector<ControlEvent>* events) {
  link->lost = true;
  events->push_back({ControlEvent::Kind::kPeerLost, link->rank, "", std::move(reason)});
  // A copy of the socket in a forked child would otherwise keep it in the epoll set.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link->socket.get(), nullptr);
  link->socket.Reset();
  if (link->pidfd.valid()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link->pidfd.get(), nullptr);
    link->pidfd.Reset();
  }
  link->out.clear();
}

void TcpControlTransport::Wait(TimePoint deadline, std::vector<ControlEvent>* events) {
  const size_t before = events->size();
  bool woken = false;
  while (!woken && events->size() == before) {
    ReportFailedWrites(events);
    const int timeout = events->size() > before ? 0 : MillisecondsUntil(deadline, MonotonicNow());
    int ready = Poll(timeout, &woken, events);
    if (timeout != 0) wakeups_.fetch_add(1, std::memory_order_relaxed);
    // Report all ready events, also of many peers: the engine judges peers by their silence.
    for (size_t seen = 0; ready == kEventsPerWait && seen < links_.size(); seen += kEventsPerWait) {
      ready = Poll(0, &woken, events);
    }
    // An interrupted wait (SIGSTOP and SIGCONT) says nothing: poll again.
    if (ready == 0 && deadline != kNever && MonotonicNow() >= deadline) return;
  }
}

// Calls epoll_wait once, for `timeout` ms. Returns how many descriptors were ready, or -1.
int TcpControlTransport::Poll(int timeout, bool* woken, std::vector<ControlEvent>* events) {
  std::array<epoll_event, kEventsPerWait> ready;
  const int n = epoll_wait(epoll_.get(), ready.data(), kEventsPerWait, timeout);
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < n; ++i) {
    const uint64_t tag = ready[i].data.u64 & ((1u << kTagBits) - 1);
    const uint64_t index = ready[i].data.u64 >> kTagBits;
    if (tag == kWakeTag) {
      *woken = true;
      continue;
    }
    if (tag == kProcessTag) {
      Process& process = processes_[index];
      if (!process.pidfd.valid()) continue;
      events->push_back(
          {ControlEvent::Kind::kPeerLost, process.rank, "", ProcessEnded(process.pid)});
      process.pidfd.Reset();
      continue;
    }
    Link* link = links_[index].get();
    if (link->lost) continue;
    if (tag == kPidTag) {
      ReadToEnd(link, ProcessEnded(link->pid), events);
      continue;
    }
    if ((ready[i].events & EPOLLOUT) != 0) Flush(link);
    if ((ready[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) ReadSome(link, events);
  }
  return n;
}

void TcpControlTransport::Close(TimePoint deadline) {
  std::lock_guard<std::mutex> lock(mutex_);
  processes_.clear();
  DrainForClose(deadline);
  for (auto& link : links_) {
    link->socket.Reset();
    link->pidfd.Reset();
    link->lost = true;
  }
}

void TcpControlTransport::DrainForClose(TimePoint deadline) {
  std::vector<ControlEvent> ignored;
  for (;;) {
    std::vector<struct pollfd> waiting;
    for (auto& link : links_) {
      if (link->lost) continue;
      if (link->write_error.empty()) Flush(link.get());
      if (link->out.empty()) shutdown(link->socket.get(), SHUT_WR);
      const short events = link->out.empty() ? POLLIN : POLLIN | POLLOUT;
      waiting.push_back({link->socket.get(), events, 0});
      // A child of a dead peer may still hold its socket open.
      if (link->pidfd.valid()) waiting.push_back({link->pidfd.get(), POLLIN, 0});
    }
    const TimePoint now = MonotonicNow();
    if (waiting.empty() || now >= deadline) return;
    if (poll(waiting.data(), waiting.size(), MillisecondsUntil(deadline, now)) < 0) continue;
    for (const struct pollfd& entry : waiting) {
      if (entry.revents == 0) continue;
      for (auto& link : links_) {
        if (link->lost) continue;
        if (link->pidfd.get() == entry.fd) {
          ReadToEnd(link.get(), "ended", &ignored);
        } else if (link->socket.get() == entry.fd && (entry.revents & ~POLLOUT) != 0) {
          ReadSome(link.get(), &ignored);
        }
      }
    }
    ignored.clear();
  }
}

}  // namespace tfring
