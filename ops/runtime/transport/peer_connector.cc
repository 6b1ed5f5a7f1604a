#include "ops/runtime/transport/peer_connector.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/wire_io.h"
#include "ops/runtime/transport/frame_mac.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr std::string_view kGreeting = "TFRDATA1";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kRanksBytes = 16;
constexpr size_t kChallengeBytes = kGreeting.size() + kNonceBytes;
constexpr size_t kClaimBytes = kRanksBytes + kNonceBytes;
constexpr Duration kPause = 100 * kMillisecond;

Result<std::string> Nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return Internal("getrandom: " + ErrnoText(errno));
  }
  return nonce;
}

// A message is short enough for the send buffer of a new connection.
Status Say(int socket, const std::string& message) {
  const ssize_t n = send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n == static_cast<ssize_t>(message.size())) return OkStatus();
  return Unavailable(n < 0 ? ErrnoText(errno) : "its connection takes no data");
}

// Takes constant time, so that nobody can guess the MAC byte by byte.
bool Same(std::string_view one, std::string_view other) {
  unsigned char differs = one.size() == other.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    differs = static_cast<unsigned char>(differs | (one[i] ^ other[i]));
  }
  return differs == 0;
}

// Begins to connect to one address of the name, the next one in each attempt.
Result<UniqueFd> ConnectTo(const std::string& name, int port, size_t attempt) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return Unavailable(gai_strerror(error));
  std::vector<const addrinfo*> all;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) all.push_back(one);
  const addrinfo& chosen = *all[attempt % all.size()];
  UniqueFd fd(socket(chosen.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  Status status = OkStatus();
  if (!fd.valid()) {
    status = Internal(ErrnoText(errno));
  } else if (connect(fd.get(), chosen.ai_addr, chosen.ai_addrlen) != 0 && errno != EINPROGRESS) {
    status = Unavailable(ErrnoText(errno));
  }
  freeaddrinfo(found);
  if (!status.ok()) return status;
  return fd;
}

void Watch(const UniqueFd& epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  (void)epoll_ctl(epoll.get(), operation, fd, &event);
}

}  // namespace

Result<std::unique_ptr<PeerConnector>> PeerConnector::Create(PeerAddresses addresses) {
  Status prepared = PrepareSocket(addresses.listener.get());
  if (!prepared.ok()) return Status(prepared.code(), "data listener: " + prepared.message());
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Internal("epoll_create1: " + ErrnoText(errno));
  Watch(epoll, EPOLL_CTL_ADD, addresses.listener.get(), EPOLLIN);
  return std::unique_ptr<PeerConnector>(new PeerConnector(std::move(addresses), std::move(epoll)));
}

PeerConnector::PeerConnector(PeerAddresses addresses, UniqueFd epoll)
    : addresses_(std::move(addresses)), epoll_(std::move(epoll)) {}

bool PeerConnector::Reaches(Rank peer) const {
  return peer >= 0 && static_cast<size_t>(peer) < addresses_.endpoints.size() &&
         peer != addresses_.self;
}

std::string PeerConnector::Place(Rank peer) const {
  const auto& [address, port] = addresses_.endpoints[static_cast<size_t>(peer)];
  return address + " port " + std::to_string(port);
}

std::string PeerConnector::Proof(const char* side, const std::string& said) const {
  Blake2b mac(addresses_.key, kProofBytes);
  mac.Update(side);
  mac.Update(said);
  return mac.Finish();
}

Status PeerConnector::Advance(Rank peer) {
  if (peer < addresses_.self) {
    const TimePoint now = MonotonicNow();
    Attempt& attempt = attempts_[peer];
    if (attempt.count == 0) attempt.began = now;
    if (attempt.socket < 0 && attempt.next <= now) TFRING_RETURN_IF_ERROR(Begin(peer, &attempt));
    TFRING_RETURN_IF_ERROR(CheckLimit(peer, attempt));
  }
  epoll_event events[64];
  const int count = epoll_wait(epoll_.get(), events, std::size(events), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == addresses_.listener.get()) {
      TFRING_RETURN_IF_ERROR(Accept());
    } else {
      Continue(events[i].data.fd);
    }
  }
  DropSlowStrangers();
  return OkStatus();
}

Status PeerConnector::Begin(Rank peer, Attempt* attempt) {
  const auto& [address, port] = addresses_.endpoints[static_cast<size_t>(peer)];
  Result<UniqueFd> socket = ConnectTo(address, port, attempt->count++);
  while (!socket.ok() && socket.status().code() == StatusCode::kInternal && DropStranger()) {
    socket = ConnectTo(address, port, attempt->count++);
  }
  if (socket.ok()) {
    attempt->socket = socket->get();
    Add({std::move(*socket), Stage::kConnecting, peer, "", "", 0});
    return OkStatus();
  }
  if (socket.status().code() == StatusCode::kInternal) {
    return Internal("rank " + std::to_string(addresses_.self) + " cannot connect to rank " +
                    std::to_string(peer) + ": " + socket.status().message() +
                    ". Raise the limit of descriptors on its host (ulimit -Hn)");
  }
  attempt->failure = socket.status().message();
  attempt->next = MonotonicNow() + kPause;
  return OkStatus();
}

Status PeerConnector::CheckLimit(Rank peer, const Attempt& attempt) const {
  if (Answered(attempt) || MonotonicNow() < attempt.began + addresses_.limit) return OkStatus();
  return Unavailable("rank " + std::to_string(addresses_.self) + " cannot connect to rank " +
                     std::to_string(peer) + " at " + Place(peer) + ": " +
                     (attempt.failure.empty() ? "no answer" : attempt.failure) +
                     ". Check that the two hosts can reach each other (firewall, or the wrong "
                     "network: TFRING_INTERFACE chooses one)");
}

Status PeerConnector::Accept() {
  UniqueFd socket(
      accept4(addresses_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    const int error = errno;
    if (error != EMFILE && error != ENFILE) return OkStatus();  // the peer has given up already
    if (DropStranger()) return OkStatus();                      // the next call accepts
    return Internal("rank " + std::to_string(addresses_.self) +
                    " cannot accept the connections of other ranks: " + ErrnoText(error) +
                    ". Raise the limit of descriptors on its host (ulimit -Hn)");
  }
  Result<std::string> nonce = Nonce();
  if (!nonce.ok()) return nonce.status();
  Handshake handshake{
      std::move(socket), Stage::kHello, kNoRank, std::string(kGreeting) + *nonce, "",
      MonotonicNow()};
  if (!Say(handshake.socket.get(), handshake.said).ok()) return OkStatus();
  if (Strangers().size() >= addresses_.endpoints.size() + addresses_.strangers) DropStranger();
  Add(std::move(handshake));
  return OkStatus();
}

void PeerConnector::Add(Handshake handshake) {
  const int fd = handshake.socket.get();
  Watch(epoll_, EPOLL_CTL_ADD, fd, handshake.stage == Stage::kConnecting ? EPOLLOUT : EPOLLIN);
  handshakes_.emplace(fd, std::move(handshake));
}

void PeerConnector::Continue(int socket) {
  const auto found = handshakes_.find(socket);
  if (found == handshakes_.end()) return;  // dropped after this event was reported
  Handshake& handshake = found->second;
  bool ready = false;
  const Status status = Receive(&handshake, &ready);
  if (!status.ok()) return Drop(socket, status.message());
  if (!ready) return;
  Watch(epoll_, EPOLL_CTL_DEL, socket, 0);
  ready_.emplace_back(handshake.peer, std::move(handshake.socket));
  attempts_.erase(handshake.peer);
  handshakes_.erase(found);
}

Status PeerConnector::Receive(Handshake* handshake, bool* ready) {
  const int fd = handshake->socket.get();
  if (handshake->stage == Stage::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      return Unavailable(ErrnoText(error));
    }
    handshake->stage = Stage::kChallenge;
    handshake->since = MonotonicNow();
    Watch(epoll_, EPOLL_CTL_MOD, fd, EPOLLIN);
    return OkStatus();
  }
  const size_t wanted = handshake->stage == Stage::kChallenge ? kChallengeBytes
                        : handshake->stage == Stage::kHello   ? kClaimBytes + kProofBytes
                                                              : kProofBytes;
  char bytes[kClaimBytes + kProofBytes];
  const ssize_t n = recv(fd, bytes, wanted - handshake->received.size(), MSG_DONTWAIT);
  if (n == 0) return Unavailable("the process that listens there closed the connection");
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? OkStatus() : Unavailable(ErrnoText(errno));
  }
  handshake->received.append(bytes, static_cast<size_t>(n));
  if (handshake->received.size() < wanted) return OkStatus();
  if (handshake->stage == Stage::kHello) return AnswerHello(handshake, ready);
  if (handshake->stage == Stage::kChallenge) return AnswerChallenge(handshake);
  *ready = Same(handshake->received, Proof("lower", handshake->said));
  return *ready ? OkStatus() : Unavailable("the process that listens there is of another job");
}

// Answers the challenge of a lower rank.
Status PeerConnector::AnswerChallenge(Handshake* handshake) const {
  if (handshake->received.compare(0, kGreeting.size(), kGreeting) != 0) {
    return Unavailable("the process that listens there is not of this version of tfring");
  }
  Result<std::string> nonce = Nonce();
  if (!nonce.ok()) return nonce.status();
  WireWriter ranks;
  ranks.Word(static_cast<uint64_t>(addresses_.self));
  ranks.Word(static_cast<uint64_t>(handshake->peer));
  const std::string claim = ranks.Take() + *nonce;
  handshake->said = handshake->received + claim;
  handshake->received.clear();
  handshake->stage = Stage::kProof;
  return Say(handshake->socket.get(), claim + Proof("higher", handshake->said));
}

// Checks the proof of a process that connected and claims to be a higher rank.
Status PeerConnector::AnswerHello(Handshake* handshake, bool* ready) const {
  handshake->said += handshake->received.substr(0, kClaimBytes);
  const std::string proof = handshake->received.substr(kClaimBytes);
  if (!Same(proof, Proof("higher", handshake->said))) return Unavailable("it has another key");
  WireReader ranks(std::string_view(handshake->received).substr(0, kRanksBytes));
  const uint64_t from = ranks.Word();
  const uint64_t to = ranks.Word();
  if (to != static_cast<uint64_t>(addresses_.self) || from <= to ||
      from >= addresses_.endpoints.size()) {
    return Unavailable("it looks for another rank");
  }
  handshake->peer = static_cast<Rank>(from);
  *ready = true;
  return Say(handshake->socket.get(), Proof("lower", handshake->said));
}

void PeerConnector::Drop(int socket, const std::string& why) {
  const auto found = handshakes_.find(socket);
  const auto attempt = attempts_.find(found->second.peer);
  if (attempt != attempts_.end()) {
    const TimePoint now = MonotonicNow();
    if (Answered(attempt->second)) attempt->second.began += now - found->second.since;
    attempt->second.socket = -1;
    attempt->second.failure = why;
    attempt->second.next = now + kPause;
  }
  handshakes_.erase(found);  // closing takes it out of the epoll set
}

std::vector<int> PeerConnector::Strangers() const {
  std::vector<int> sockets;
  for (const auto& [socket, handshake] : handshakes_) {
    if (handshake.peer == kNoRank) sockets.push_back(socket);
  }
  return sockets;
}

// Drops a random stranger, so that nobody can choose which one. False if there is none.
bool PeerConnector::DropStranger() {
  const std::vector<int> sockets = Strangers();
  if (sockets.empty()) return false;
  size_t number = 0;
  (void)!getrandom(&number, sizeof(number), 0);
  handshakes_.erase(sockets[number % sockets.size()]);
  return true;
}

void PeerConnector::DropSlowStrangers() {
  const TimePoint now = MonotonicNow();
  for (const int socket : Strangers()) {
    if (handshakes_.at(socket).since + addresses_.hello_limit <= now) handshakes_.erase(socket);
  }
}

// Returns whether the peer's kernel has answered.
bool PeerConnector::Answered(const Attempt& attempt) const {
  return attempt.socket >= 0 && handshakes_.at(attempt.socket).stage != Stage::kConnecting;
}

TimePoint PeerConnector::NextAttempt() const {
  TimePoint next = kNever;
  for (const auto& [peer, attempt] : attempts_) {
    if (attempt.socket < 0) next = std::min(next, attempt.next);
    if (!Answered(attempt)) next = std::min(next, attempt.began + addresses_.limit);
  }
  for (const int socket : Strangers()) {
    next = std::min(next, handshakes_.at(socket).since + addresses_.hello_limit);
  }
  return next;
}

std::string PeerConnector::Trouble(Rank peer) const {
  const auto found = attempts_.find(peer);
  if (found == attempts_.end() || Answered(found->second)) return "";
  const std::string& failure = found->second.failure;
  return "nothing answers at " + Place(peer) + (failure.empty() ? "" : " (" + failure + ")");
}

}  // namespace tfring
