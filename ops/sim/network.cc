#include "ops/sim/network.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tfring::sim {

namespace {
constexpr Rank kRanksPerHost = 4;

ControlEvent Lost(Rank rank, const std::string& reason) {
  ControlEvent event;
  event.kind = ControlEvent::Kind::kPeerLost;
  event.peer = rank;
  event.reason = reason;
  return event;
}
}  // namespace

Network::Network(int size, VirtualClock* clock, Random random, Sink sink)
    : clock_(clock),
      random_(random),
      sink_(std::move(sink)),
      directions_(2 * static_cast<size_t>(size)),
      closed_(static_cast<size_t>(size)) {
  for (Direction& direction : directions_) {
    // A few slow links let frames of other links overtake by far.
    direction.latency = random_.Between(10, random_.Percent(20) ? 5000 : 100) * kMicrosecond;
  }
}

Network::Direction& Network::Between(Rank from, Rank to) {
  return directions_[from == 0 ? 2 * static_cast<size_t>(to) + 1 : 2 * static_cast<size_t>(from)];
}

TimePoint Network::Arrival(Direction* direction, Duration delay) {
  const Duration jitter = random_.Below(direction->latency + 1);
  TimePoint arrival = clock_->Now() + delay + direction->latency + jitter;
  arrival = std::max(arrival, direction->last_arrival);
  direction->last_arrival = arrival;
  return arrival;
}

void Network::Send(Rank from, Rank to, std::string frame) {
  if (closed_[from] || closed_[to]) return;
  Direction& direction = Between(from, to);
  max_in_flight_ = std::max(max_in_flight_, ++direction.in_flight);
  auto bytes = std::make_shared<std::string>(std::move(frame));
  clock_->At(Arrival(&direction, 0), [this, from, to, bytes] {
    --Between(from, to).in_flight;
    if (closed_[to]) return;
    ControlEvent event;
    event.peer = from;
    event.frame = std::move(*bytes);
    sink_(to, std::move(event));
  });
}

void Network::CloseAll(Rank rank, Duration delay) {
  if (closed_[rank]) return;
  closed_[rank] = true;
  const Rank size = static_cast<Rank>(closed_.size());
  for (Rank peer = rank == 0 ? 1 : 0; peer < (rank == 0 ? size : 1); ++peer) {
    clock_->At(Arrival(&Between(rank, peer), delay), [this, rank, peer] {
      if (closed_[peer]) return;
      sink_(peer, Lost(rank, "connection closed"));
    });
  }
  // Ranks of one host also watch each other's processes.
  for (Rank peer = rank / kRanksPerHost * kRanksPerHost; peer < size; ++peer) {
    if (peer / kRanksPerHost != rank / kRanksPerHost) break;
    if (peer == 0 || rank == 0 || peer == rank) continue;
    clock_->After(random_.Below(5000 * kMicrosecond), [this, rank, peer] {
      if (!closed_[peer]) sink_(peer, Lost(rank, "its process ended"));
    });
  }
}

}  // namespace tfring::sim
