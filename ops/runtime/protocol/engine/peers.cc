#include "ops/runtime/protocol/engine/peers.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/message/text.h"

namespace tfring {

Peers::Peers(Rank rank, int size, const Config& config, Duration start_timeout)
    : size_(size),
      interval_(config.heartbeat_interval),
      timeout_(config.heartbeat_timeout),
      first_timeout_(std::max(config.heartbeat_timeout, start_timeout)),
      state_(static_cast<size_t>(size)) {
  if (rank != 0) {
    control_peers_.push_back(0);
    return;
  }
  for (Rank peer = 1; peer < size; ++peer) control_peers_.push_back(peer);
}

bool Peers::IsControlPeer(Rank peer) const {
  return std::binary_search(control_peers_.begin(), control_peers_.end(), peer);
}

void Peers::MarkDeparted(Rank peer, const std::string& error) {
  state_[peer].departed = true;
  state_[peer].error = error;
  departures_ += IsControlPeer(peer) ? 1 : 0;
  if (first_departed_ == kNoRank) first_departed_ = peer;
}

void Peers::MarkGone(Rank peer) { state_[peer].gone = true; }

void Peers::Suspect(Rank peer, Suspicion suspicion) {
  auto [it, added] = suspicions_.emplace(peer, suspicion);
  if (added) return;
  Suspicion& known = it->second;
  known.deadline = std::min(known.deadline, suspicion.deadline);
  if (suspicion.hard && !known.hard) {
    known.hard = true;
    known.reason = std::move(suspicion.reason);
  }
}

std::optional<Peers::Suspicion> Peers::TakeSuspicion(Rank peer) {
  auto it = suspicions_.find(peer);
  if (it == suspicions_.end()) return std::nullopt;
  Suspicion suspicion = std::move(it->second);
  suspicions_.erase(it);
  return suspicion;
}

std::optional<std::pair<Rank, Peers::Suspicion>> Peers::TakeExpired(TimePoint now) {
  auto first = std::min_element(
      suspicions_.begin(), suspicions_.end(),
      [](const auto& a, const auto& b) { return a.second.deadline < b.second.deadline; });
  if (first == suspicions_.end() || first->second.deadline > now) return std::nullopt;
  std::pair<Rank, Suspicion> expired = *first;
  suspicions_.erase(first);
  return expired;
}

void Peers::StartHeartbeats(TimePoint now) {
  for (State& state : state_) state.sent = state.received = now;
}

std::vector<Rank> Peers::HeartbeatsDue(TimePoint now) const {
  std::vector<Rank> due;
  if (interval_ <= 0) return due;
  bool any = false;
  for (Rank peer : control_peers_) {
    if (!Watched(peer)) continue;
    any = any || now - state_[peer].sent >= interval_;
    // Peers that are due soon get theirs now: one wake-up for all of them instead of one for each.
    if (now - state_[peer].sent >= interval_ / 2) due.push_back(peer);
  }
  if (!any) due.clear();
  return due;
}

Rank Peers::Silent(TimePoint now) const {
  if (interval_ <= 0) return kNoRank;
  for (Rank peer : control_peers_) {
    if (Watched(peer) && now >= SilentFrom(peer)) return peer;
  }
  return kNoRank;
}

TimePoint Peers::SilentFrom(Rank peer) const {
  const State& state = state_[peer];
  return state.received + (state.heard ? timeout_ : first_timeout_);
}

void Peers::PutOff(Duration pause) {
  for (State& state : state_) state.received += pause;
  for (auto& item : suspicions_) item.second.deadline += pause;
}

TimePoint Peers::suspicion_deadline() const {
  TimePoint deadline = kNever;
  for (const auto& item : suspicions_) deadline = std::min(deadline, item.second.deadline);
  return deadline;
}

TimePoint Peers::heartbeat_deadline() const {
  TimePoint deadline = kNever;
  if (interval_ <= 0) return deadline;
  for (Rank peer : control_peers_) {
    if (!Watched(peer)) continue;
    deadline = std::min({deadline, state_[peer].sent + interval_, SilentFrom(peer)});
  }
  return deadline;
}

PeerTexts::PeerTexts(Rank rank, std::vector<std::string> hosts, const Peers& peers)
    : rank_(rank), hosts_(std::move(hosts)), peers_(peers) {}

Status PeerTexts::Lost(Rank peer, const std::string& reason) const {
  return Unavailable(Name(peer) + " was lost: " + reason + ". See the log of that rank; " +
                     kWhatToDo);
}

Status PeerTexts::Left(Rank peer, const std::string& what) const {
  std::string text = Name(peer) + " has shut down";
  std::string error = peer == rank_ ? "" : Ended(peer);
  // Rank 0 often leaves because another rank did: name that one.
  const Rank first = peers_.first_departed();
  if (peer == 0 && rank_ != 0 && first != kNoRank && first != 0) {
    error = Ended(first);
    text += ", after " + (error.empty() ? Name(first) + " had" : error);
  } else if (!error.empty()) {
    text = error;
  }
  if (!what.empty()) text += (error.empty() ? " while " : ", while ") + what + " was running";
  return Cancelled(text + (error.empty() ? ": no" : ". No") +
                   " collective with it is possible any more");
}

std::string PeerTexts::Ended(Rank peer, const std::string& exception) const {
  return exception.empty() ? "" : Name(peer) + " ended with an exception: " + exception;
}

}  // namespace tfring
