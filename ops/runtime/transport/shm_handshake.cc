#include "ops/runtime/transport/shm_handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <type_traits>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/frame_mac.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr uint32_t kMagic = 0x32524654;  // "TFR2"
constexpr uint64_t kMaxOfferedRingBytes = 1ULL << 30;
constexpr uint64_t kMaxPartBytes = 1ULL << 30;
constexpr uint32_t kMaxRings = 4096;

// Sent as raw memory, because both processes are on one machine.
struct Offer {
  uint32_t magic = kMagic;
  uint32_t usable = 0;
  int64_t pid = 0;
  int32_t fd = -1;
  uint32_t rings = 0;
  uint64_t ring_bytes = 0;
  uint64_t part_bytes = 0;
  uint32_t your_ring = 0;
  uint32_t padding = 0;
  ShmNonce nonce{};
};
static_assert(std::is_trivially_copyable_v<Offer> && sizeof(Offer) == 64, "sent as bytes");

Status PeerError(Rank rank, const std::string& what) {
  return Unavailable("setting up shared memory with rank " + std::to_string(rank) + ": " + what);
}

// Moves exactly `bytes` with send or recv on a non-blocking socket.
template <typename Move>
Status MoveAll(const ShmPeer& peer, uint8_t* data, size_t bytes, short event, TimePoint deadline,
               Move move) {
  while (bytes > 0) {
    const ssize_t n = move(data, bytes);
    if (n > 0) {
      data += n;
      bytes -= static_cast<size_t>(n);
      continue;
    }
    if (n == 0) return PeerError(peer.rank, "it closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return PeerError(peer.rank, ErrnoText(errno));
    const TimePoint now = MonotonicNow();
    if (now >= deadline) return PeerError(peer.rank, "no answer in time");
    pollfd wait{peer.fd, event, 0};
    poll(&wait, 1, MillisecondsUntil(deadline, now));
  }
  return OkStatus();
}

template <typename T>
Status SendAll(const ShmPeer& peer, T value, TimePoint deadline) {
  return MoveAll(peer, reinterpret_cast<uint8_t*>(&value), sizeof(T), POLLOUT, deadline,
                 [&](uint8_t* data, size_t bytes) {
                   return send(peer.fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
                 });
}

template <typename T>
Status RecvAll(const ShmPeer& peer, T* value, TimePoint deadline) {
  return MoveAll(
      peer, reinterpret_cast<uint8_t*>(value), sizeof(T), POLLIN, deadline,
      [&](uint8_t* data, size_t bytes) { return recv(peer.fd, data, bytes, MSG_DONTWAIT); });
}

Offer MakeOffer(const ShmSegment* own, uint32_t ring) {
  Offer offer;
  if (own == nullptr) return offer;
  offer.usable = 1;
  offer.pid = getpid();
  offer.fd = own->fd();
  offer.rings = own->rings();
  offer.ring_bytes = own->ring_bytes();
  offer.part_bytes = own->part_bytes();
  offer.your_ring = ring;
  offer.nonce = own->header()->nonce;
  return offer;
}

// Opens the segment of a peer. Null if it cannot be mapped; the two ranks then use sockets.
std::unique_ptr<ShmSegment> OpenOffered(const Offer& offer) {
  const bool sane = offer.usable == 1 && offer.pid > 0 && offer.fd >= 0 && offer.rings > 0 &&
                    offer.rings <= kMaxRings && offer.your_ring < offer.rings &&
                    offer.ring_bytes > 0 && offer.ring_bytes <= kMaxOfferedRingBytes &&
                    (offer.ring_bytes & (offer.ring_bytes - 1)) == 0 &&
                    offer.part_bytes <= kMaxPartBytes;
  if (!sane) return nullptr;
  Result<std::unique_ptr<ShmSegment>> segment =
      ShmSegment::Open(static_cast<pid_t>(offer.pid), offer.fd, offer.nonce, offer.rings,
                       offer.ring_bytes, offer.part_bytes);
  return segment.ok() ? std::move(*segment) : nullptr;
}

}  // namespace

Result<std::vector<ShmAgreement>> AgreeOnSharedMemory(const ShmSegment* own,
                                                      const std::vector<ShmPeer>& peers,
                                                      TimePoint deadline) {
  std::vector<ShmAgreement> agreements(peers.size());
  // Each rank sends to all peers before it receives, so that no deadlock is possible.
  for (size_t i = 0; i < peers.size(); ++i) {
    TFRING_RETURN_IF_ERROR(SendAll(peers[i], MakeOffer(own, static_cast<uint32_t>(i)), deadline));
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    Offer offer;
    TFRING_RETURN_IF_ERROR(RecvAll(peers[i], &offer, deadline));
    if (offer.magic != kMagic) return PeerError(peers[i].rank, "it speaks another protocol");
    agreements[i].rank = peers[i].rank;
    agreements[i].our_ring = offer.your_ring;
    agreements[i].their_ring = static_cast<uint32_t>(i);
    if (own != nullptr) agreements[i].theirs = OpenOffered(offer);
    TFRING_RETURN_IF_ERROR(
        SendAll(peers[i], static_cast<uint8_t>(agreements[i].theirs != nullptr), deadline));
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    uint8_t they_mapped = 0;
    TFRING_RETURN_IF_ERROR(RecvAll(peers[i], &they_mapped, deadline));
    if (they_mapped != 1) agreements[i].theirs = nullptr;
  }
  return agreements;
}

Result<bool> AgreeOnGroup(const std::vector<Rank>& group, const std::vector<ShmPeer>& peers,
                          TimePoint deadline) {
  std::vector<Rank> sorted = group;
  std::sort(sorted.begin(), sorted.end());
  // A fixed-size digest of a group.
  using Digest = std::array<char, 16>;
  Blake2b hash("", std::tuple_size_v<Digest>);
  for (Rank rank : sorted) hash.Update({reinterpret_cast<const char*>(&rank), sizeof(rank)});
  Digest own{};
  const std::string digest = hash.Finish();
  std::copy(digest.begin(), digest.end(), own.begin());
  for (const ShmPeer& peer : peers) TFRING_RETURN_IF_ERROR(SendAll(peer, own, deadline));
  bool agreed = sorted.size() > 1;
  for (const ShmPeer& peer : peers) {
    Digest theirs{};
    TFRING_RETURN_IF_ERROR(RecvAll(peer, &theirs, deadline));
    const bool member = std::binary_search(sorted.begin(), sorted.end(), peer.rank);
    if (member) agreed &= theirs == own;
  }
  return agreed;
}

}  // namespace tfring
