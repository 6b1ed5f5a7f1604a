#include "ops/runtime/transport/shm_data.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ops/runtime/base/log.h"

namespace tfring {
namespace {

// Large enough for both sides to copy at the same time, small enough for a second-level cache.
constexpr uint64_t kMaxOwnRingBytes = 1 << 20;
constexpr uint64_t kMinRingBytes = 64 << 10;
constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kSegmentBudget = 32 << 20;
// The writer publishes in parts of this size, so that both sides copy at the same time.
constexpr uint64_t kPublishBytes = 128 << 10;

uint64_t RingBytesFor(size_t peers) {
  uint64_t bytes = kMaxOwnRingBytes;
  while (bytes > kMinRingBytes && bytes * peers > kSegmentBudget) bytes /= 2;
  return bytes;
}

// Returns how far position `to` is beyond `from`; 0 if it is before it.
uint64_t Past(uint64_t from, uint64_t to) { return to > from ? to - from : 0; }

uint64_t NextLine(uint64_t position) { return (position + kLineBytes - 1) & ~(kLineBytes - 1); }

}  // namespace

// The two rings between this rank and a peer. We write the ring in the peer's segment and read the
// ring in our own. Each side caches the other side's position and reads its cache line only when
// the cached position does not suffice. A side publishes an aligned position together with its next
// bytes. So a writer may be up to one line beyond the end of the ring, and a reader up to one line
// beyond the written bytes that it knows of.
struct ShmDataTransport::RingPair {
  Rank rank = kNoRank;
  std::unique_ptr<ShmSegment> theirs;
  ShmRing* out = nullptr;
  uint8_t* out_data = nullptr;
  uint64_t out_bytes = 0;
  uint64_t out_written = 0;
  uint64_t out_read_seen = 0;
  ShmRing* in = nullptr;
  const uint8_t* in_data = nullptr;
  uint64_t in_bytes = 0;
  uint64_t in_read = 0;
  uint64_t in_written_seen = 0;

  uint64_t Room() {
    if (Past(out_written, out_read_seen + out_bytes) == 0) {
      out_read_seen = out->read.load(std::memory_order_acquire);
    }
    return Past(out_written, out_read_seen + out_bytes);
  }

  uint64_t Arrived() {
    if (Past(in_read, in_written_seen) == 0) {
      in_written_seen = in->written.load(std::memory_order_acquire);
    }
    return Past(in_read, in_written_seen);
  }

  // Publishes the next `bytes` written bytes to the peer.
  void Publish(uint64_t bytes) {
    out_written += bytes;
    out->written.store(out_written, std::memory_order_seq_cst);
    theirs->WakeOwner();
  }

  bool CanReceive() const {
    return Past(in_read, in->written.load(std::memory_order_seq_cst)) > 0 ||
           in->producer_closed.load(std::memory_order_seq_cst) != 0;
  }

  bool CanSend() const {
    return Past(out_written, out->read.load(std::memory_order_seq_cst) + out_bytes) > 0 ||
           theirs->header()->owner_closed.load(std::memory_order_seq_cst) != 0;
  }

  Status Broken(const char* during) const {
    return Unavailable("rank " + std::to_string(rank) +
                       " closed its shared memory while this rank was " + during + " it");
  }
};

Result<std::unique_ptr<DataTransport>> ShmDataTransport::Connect(
    ShmUse use, const std::vector<ShmPeer>& peers, std::unique_ptr<DataTransport> base,
    TimePoint deadline, Rank self) {
  if (peers.empty()) return base;
  std::unique_ptr<ShmSegment> own;
  std::string trouble = "another rank of this host cannot map it";
  if (use != ShmUse::kNever) {
    const auto create = [&peers](uint64_t part_bytes) {
      return ShmSegment::Create(static_cast<uint32_t>(peers.size()), RingBytesFor(peers.size()),
                                part_bytes);
    };
    Result<std::unique_ptr<ShmSegment>> created =
        create(self == kNoRank ? 0 : HostMemory::kPartBytes);
    if (!created.ok()) created = create(0);  // the streams may still fit
    if (created.ok()) {
      own = std::move(*created);
    } else {
      trouble = created.status().message();
      if (use == ShmUse::kWherePossible) {
        Log(LogLevel::kWarning, trouble + "; using sockets within this host");
      }
    }
  }
  Result<std::vector<ShmAgreement>> agreed = AgreeOnSharedMemory(own.get(), peers, deadline);
  if (!agreed.ok()) return agreed.status();
  std::vector<Rank> group;
  const auto has_part = [](const auto& segment) {
    return segment != nullptr && segment->part_bytes() > 0;
  };
  for (const ShmAgreement& agreement : *agreed) {
    if (has_part(own) && has_part(agreement.theirs)) group.push_back(agreement.rank);
  }
  if (!group.empty()) group.push_back(self);
  const Result<bool> one_group = AgreeOnGroup(group, peers, deadline);
  if (!one_group.ok()) return one_group.status();
  for (const ShmAgreement& agreement : *agreed) {
    if (use != ShmUse::kRequired || agreement.theirs != nullptr) continue;
    return FailedPrecondition(
        "TFRING_CPU_OPERATIONS is shm, and there is no shared memory with rank " +
        std::to_string(agreement.rank) + ", which is on this host: " + trouble +
        ". Give the host, or the container, more of it, or set "
        "TFRING_CPU_OPERATIONS=auto");
  }
  if (own == nullptr) return base;
  std::unique_ptr<ShmDataTransport> transport(
      new ShmDataTransport(std::move(own), std::move(base)));
  for (ShmAgreement& agreement : *agreed) {
    if (agreement.theirs != nullptr) transport->AddPair(std::move(agreement));
  }
  if (*one_group) transport->MakeHostMemory(self);
  return std::unique_ptr<DataTransport>(std::move(transport));
}

void ShmDataTransport::AddPair(ShmAgreement agreement) {
  auto pair = std::make_unique<RingPair>();
  pair->rank = agreement.rank;
  pair->theirs = std::move(agreement.theirs);
  pair->out = pair->theirs->ring(agreement.our_ring);
  pair->out_data = pair->theirs->data(agreement.our_ring);
  pair->out_bytes = pair->theirs->ring_bytes();
  pair->in = own_->ring(agreement.their_ring);
  pair->in_data = own_->data(agreement.their_ring);
  pair->in_bytes = own_->ring_bytes();
  const auto index = static_cast<size_t>(agreement.rank);
  if (pairs_.size() <= index) pairs_.resize(index + 1);
  pairs_[index] = std::move(pair);
  shared_.push_back(agreement.rank);
}

void ShmDataTransport::MakeHostMemory(Rank self) {
  std::vector<ShmHostMemory::Member> members = {{self, own_.get()}};
  for (Rank peer : shared_) members.push_back({peer, Find(peer)->theirs.get()});
  host_memory_ = std::make_unique<ShmHostMemory>(self, std::move(members), &interrupted_);
}

ShmDataTransport::ShmDataTransport(std::unique_ptr<ShmSegment> own,
                                   std::unique_ptr<DataTransport> base)
    : own_(std::move(own)), base_(std::move(base)) {}

ShmDataTransport::~ShmDataTransport() = default;

ShmDataTransport::RingPair* ShmDataTransport::Find(Rank peer) const {
  if (peer < 0 || static_cast<size_t>(peer) >= pairs_.size()) return nullptr;
  return pairs_[static_cast<size_t>(peer)].get();
}

bool ShmDataTransport::Connected(Rank peer) const {
  return Find(peer) != nullptr || base_->Connected(peer);
}

Result<int64_t> ShmDataTransport::TrySend(Rank to, const struct iovec* iov, int count) {
  RingPair* pair = Find(to);
  if (pair == nullptr) return base_->TrySend(to, iov, count);
  if (pair->theirs->header()->owner_closed.load(std::memory_order_acquire) != 0) {
    return pair->Broken("sending to");
  }
  uint64_t room = pair->Room();
  uint64_t moved = 0;
  uint64_t hidden = 0;  // part of it that is not published yet
  for (int i = 0; i < count && room > 0; ++i) {
    const auto* from = static_cast<const uint8_t*>(iov[i].iov_base);
    uint64_t left = std::min<uint64_t>(iov[i].iov_len, room);
    room -= left;
    while (left > 0) {
      const uint64_t at = (pair->out_written + hidden) & (pair->out_bytes - 1);
      const uint64_t n = std::min({left, pair->out_bytes - at, kPublishBytes - hidden});
      std::memcpy(pair->out_data + at, from, n);
      from += n;
      left -= n;
      moved += n;
      hidden += n;
      if (hidden < kPublishBytes) continue;
      pair->Publish(hidden);
      hidden = 0;
    }
  }
  if (hidden > 0) pair->Publish(hidden);
  bytes_sent_.fetch_add(static_cast<int64_t>(moved), std::memory_order_relaxed);
  return static_cast<int64_t>(moved);
}

Result<int64_t> ShmDataTransport::TryRecv(Rank from, const struct iovec* iov, int count) {
  RingPair* pair = Find(from);
  if (pair == nullptr) return base_->TryRecv(from, iov, count);
  // Read the flag first: bytes written before the peer closed must still be delivered.
  const bool closed = pair->in->producer_closed.load(std::memory_order_acquire) != 0;
  const uint64_t arrived = pair->Arrived();
  uint64_t moved = 0;
  bool wanted = false;
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<uint8_t*>(iov[i].iov_base);
    uint64_t left = std::min<uint64_t>(iov[i].iov_len, arrived - moved);
    wanted |= iov[i].iov_len > 0;
    while (left > 0) {
      const uint64_t at = (pair->in_read + moved) & (pair->in_bytes - 1);
      const uint64_t n = std::min(left, pair->in_bytes - at);
      std::memcpy(to, pair->in_data + at, n);
      to += n;
      left -= n;
      moved += n;
    }
  }
  if (arrived == 0 && closed && wanted) return pair->Broken("receiving from");
  if (moved > 0) Consume(from, static_cast<int64_t>(moved));
  return static_cast<int64_t>(moved);
}

bool ShmDataTransport::CanPeek(Rank from) const {
  return Find(from) != nullptr || base_->CanPeek(from);
}

Result<struct iovec> ShmDataTransport::Peek(Rank from) {
  RingPair* pair = Find(from);
  if (pair == nullptr) return base_->Peek(from);
  // Read the flag first: bytes written before the peer closed must still be delivered.
  const bool closed = pair->in->producer_closed.load(std::memory_order_acquire) != 0;
  const uint64_t arrived = pair->Arrived();
  if (arrived == 0 && closed) return pair->Broken("receiving from");
  const uint64_t at = pair->in_read & (pair->in_bytes - 1);
  const uint64_t n = std::min(arrived, pair->in_bytes - at);
  return iovec{const_cast<uint8_t*>(pair->in_data + at), n};
}

void ShmDataTransport::Consume(Rank from, int64_t bytes) {
  RingPair* pair = Find(from);
  if (pair == nullptr) return base_->Consume(from, bytes);
  const uint64_t before = pair->in_read;
  pair->in_read += static_cast<uint64_t>(bytes);
  pair->in->read.store(pair->in_read, std::memory_order_seq_cst);
  // Only a peer that has filled the ring can wait for room; an alignment that it has not published
  // may have filled it. Either we see the full ring here, or the peer fills it later. In the second
  // case the peer checks for room before it sleeps, and finds the bytes that we have just freed.
  if (NextLine(pair->in->written.load(std::memory_order_seq_cst)) - before >= pair->in_bytes) {
    pair->theirs->WakeOwner();
  }
}

void ShmDataTransport::AlignSend(Rank to) {
  RingPair* pair = Find(to);
  if (pair == nullptr) return base_->AlignSend(to);
  pair->out_written = NextLine(pair->out_written);
}

void ShmDataTransport::AlignRecv(Rank from) {
  RingPair* pair = Find(from);
  if (pair == nullptr) return base_->AlignRecv(from);
  pair->in_read = NextLine(pair->in_read);
}

bool ShmDataTransport::Ready(const std::vector<Rank>& readable,
                             const std::vector<Rank>& writable) const {
  if (interrupted_.load(std::memory_order_seq_cst)) return true;
  for (Rank r : readable) {
    const RingPair* pair = Find(r);
    if (pair != nullptr && pair->CanReceive()) return true;
  }
  for (Rank r : writable) {
    const RingPair* pair = Find(r);
    if (pair != nullptr && pair->CanSend()) return true;
  }
  return false;
}

// Lists the part of `what` that concerns peers reached through sockets.
void ShmDataTransport::ListSockets(const WaitSet& what) {
  const auto copy = [this](const std::vector<Rank>& from, std::vector<Rank>* to) {
    to->clear();
    for (Rank peer : from) {
      if (Find(peer) == nullptr) to->push_back(peer);
    }
  };
  copy(what.readable, &sockets_.readable);
  copy(what.writable, &sockets_.writable);
  copy(what.watched, &sockets_.watched);
  sockets_.sent = what.sent;
  sockets_.deadline = what.deadline;
}

std::optional<BrokenStream> ShmDataTransport::Wait(const WaitSet& what) {
  ListSockets(what);
  const bool memory = sockets_.readable.size() + sockets_.writable.size() <
                      what.readable.size() + what.writable.size();
  const bool sockets = !sockets_.readable.empty() || !sockets_.writable.empty() ||
                       !sockets_.watched.empty() || base_->Sending();
  sockets_.also_readable = memory ? own_->pipe() : -1;
  if (!memory) return base_->Wait(sockets_);
  ShmHeader* header = own_->header();
  const uint32_t seen = header->doorbell.load(std::memory_order_seq_cst);
  if (Ready(what.readable, what.writable)) return std::nullopt;
  header->awaited.store(kNoRank, std::memory_order_seq_cst);
  header->sleep.store(sockets ? ShmSleep::kInPoll : ShmSleep::kOnFutex, std::memory_order_seq_cst);
  std::optional<BrokenStream> broken;
  // Check again: a peer that changed a ring before it saw `sleep` did not wake us.
  if (!Ready(what.readable, what.writable)) {
    if (sockets) {
      broken = base_->Wait(sockets_);
    } else {
      own_->SleepOnFutex(seen, what.deadline);
    }
  }
  header->sleep.store(ShmSleep::kAwake, std::memory_order_seq_cst);
  if (sockets) own_->EmptyPipe();
  return broken;
}

bool ShmDataTransport::Unacknowledged(Rank peer) const {
  return Find(peer) == nullptr && base_->Unacknowledged(peer);
}

std::string ShmDataTransport::PathTrouble(Rank peer) const {
  return Find(peer) == nullptr ? base_->PathTrouble(peer) : "";
}

void ShmDataTransport::Interrupt() {
  interrupted_.store(true, std::memory_order_seq_cst);
  own_->WakeOwner();
  base_->Interrupt();
}

int64_t ShmDataTransport::bytes_sent() const { return bytes_sent_ + base_->bytes_sent(); }

int64_t ShmDataTransport::memory() const {
  return static_cast<int64_t>(own_->rings() * own_->ring_bytes() + own_->part_bytes());
}

void ShmDataTransport::Close(TimePoint deadline) {
  own_->header()->owner_closed.store(1, std::memory_order_seq_cst);
  for (const std::unique_ptr<RingPair>& pair : pairs_) {
    if (pair == nullptr) continue;
    pair->out->producer_closed.store(1, std::memory_order_seq_cst);
    pair->theirs->WakeOwner();
  }
  base_->Close(deadline);
}

}  // namespace tfring
