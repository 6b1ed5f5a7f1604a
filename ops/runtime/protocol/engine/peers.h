#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PEERS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PEERS_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/text.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/engine/limits.h"
#include "ops/runtime/protocol/message/wire.h"

namespace tfring {

// What this rank knows about the other ranks: which have said goodbye, whose control connection has
// ended, which may be lost, and when a heartbeat is due to a control peer or overdue from it. The
// control peers of rank 0 are all other ranks, those of any other rank are rank 0. Part of the
// engine.
class Peers {
 public:
  // Why a rank may be lost. A hard suspicion comes from a plan that broke: the generation ends in
  // any case, the question is only which rank is named. A soft one (its process ended) is dropped
  // when the rank's goodbye arrives.
  struct Suspicion {
    std::string reason;
    TimePoint deadline = kNever;  // from then on it counts without a further sign
    bool hard = false;
  };

  // A peer that was never heard may be silent for `start_timeout`, if that is longer than the
  // timeout of heartbeats: it may still be starting.
  Peers(Rank rank, int size, const Config& config, Duration start_timeout);

  const std::vector<Rank>& control_peers() const { return control_peers_; }
  bool IsControlPeer(Rank peer) const;
  Duration timeout() const { return timeout_; }  // of heartbeats
  bool InRange(Rank peer) const { return peer >= 0 && peer < size_; }

  // Once for each; with the exception that ends its process, or "".
  void MarkDeparted(Rank peer, const std::string& error);
  void MarkGone(Rank peer);  // connection closed: frames to it are pointless
  bool departed(Rank peer) const { return state_[peer].departed; }
  bool gone(Rank peer) const { return state_[peer].gone; }
  // All control peers.
  bool all_departed() const { return departures_ == control_peers_.size(); }
  // Which rank said goodbye first, or kNoRank.
  Rank first_departed() const { return first_departed_; }
  // What MarkDeparted was given.
  const std::string& departure_error(Rank peer) const { return state_[peer].error; }

  // A hard suspicion replaces a soft one; the earlier deadline stays. kNoRank: of a peer that is
  // not known.
  void Suspect(Rank peer, Suspicion suspicion);
  // Removes and returns the suspicion against `peer`, if there is one.
  std::optional<Suspicion> TakeSuspicion(Rank peer);
  // Removes and returns the suspicion whose deadline passed first, if one has.
  std::optional<std::pair<Rank, Suspicion>> TakeExpired(TimePoint now);

  // Starts the heartbeat clocks of all peers, as if each had just sent and received a frame. Call
  // it once, first.
  void StartHeartbeats(TimePoint now);
  void Sent(Rank peer, TimePoint now) { state_[peer].sent = now; }
  void Received(Rank peer, TimePoint now) {
    state_[peer].received = now;
    state_[peer].heard = true;
  }
  // This process did not run for `pause`: no peer's silence is judged by that time.
  void PutOff(Duration pause);
  // Control peers to which this rank has to send a heartbeat now.
  std::vector<Rank> HeartbeatsDue(TimePoint now) const;
  // A control peer that has been silent for too long, or kNoRank.
  Rank Silent(TimePoint now) const;

  TimePoint suspicion_deadline() const;
  TimePoint heartbeat_deadline() const;

 private:
  struct State {
    bool departed = false;
    std::string error;  // of MarkDeparted
    bool gone = false;
    TimePoint sent = 0;
    TimePoint received = 0;
    bool heard = false;  // at all
  };
  TimePoint SilentFrom(Rank peer) const;
  // Rank 0 also after its goodbye: it may plan for others while it is connected.
  bool Watched(Rank peer) const {
    return (!state_[peer].departed || peer == 0) && !state_[peer].gone;
  }

  const int size_;
  const Duration interval_;
  const Duration timeout_;
  const Duration first_timeout_;
  std::vector<Rank> control_peers_;
  std::vector<State> state_;
  size_t departures_ = 0;  // of control peers
  Rank first_departed_ = kNoRank;
  std::map<Rank, Suspicion> suspicions_;
};

// The errors that name a rank which was lost or has left. Part of the engine.
class PeerTexts {
 public:
  // `hosts` has host names by rank, or nothing.
  PeerTexts(Rank rank, std::vector<std::string> hosts, const Peers& peers);

  std::string Name(Rank peer) const { return RankName(peer, hosts_); }

  // Unavailable.
  Status Lost(Rank peer, const std::string& reason) const;
  // Cancelled. `what` was running, unless it is empty.
  Status Left(Rank peer, const std::string& what = "") const;

  // "rank 2 (host h) ended with an exception: ValueError: bad"; "" without an exception.
  std::string Ended(Rank peer) const { return Ended(peer, peers_.departure_error(peer)); }
  std::string Ended(Rank peer, const std::string& exception) const;

 private:
  const Rank rank_;
  const std::vector<std::string> hosts_;
  const Peers& peers_;
};

// The goodbyes that rank 0 has not passed on to the others yet. Part of the engine.
class Goodbyes {
 public:
  void Add(Departure departure) { waiting_.push_back(std::move(departure)); }
  void Clear() { waiting_.clear(); }
  bool empty() const { return waiting_.empty(); }

  // When they should go out.
  TimePoint deadline() const { return waiting_.empty() ? kNever : not_before_; }

  // Hands over all goodbyes. Only the first few keep their error texts.
  std::vector<Departure> Take(TimePoint now) {
    std::vector<Departure> taken = std::exchange(waiting_, {});
    for (size_t i = kErrorsPassedOn; i < taken.size(); ++i) taken[i].error.clear();
    not_before_ = now + kGoodbyePause;
    return taken;
  }

 private:
  std::vector<Departure> waiting_;
  TimePoint not_before_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PEERS_H_
