#ifndef TFRING_OPS_SIM_NETWORK_H_
#define TFRING_OPS_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/control_transport.h"
#include "ops/sim/random.h"
#include "ops/sim/virtual_clock.h"

namespace tfring::sim {

// The control connections of all ranks: every rank with rank 0. Each direction of a connection has
// a latency of its own, which also varies by frame; frames of one direction keep their order,
// frames of different ones overtake each other. Lives for one run; one thread.
class Network {
 public:
  using Sink = std::function<void(Rank to, ControlEvent event)>;

  Network(int size, VirtualClock* clock, Random random, Sink sink);

  // `from` or `to` is rank 0. The frame is dropped if either end is closed.
  void Send(Rank from, Rank to, std::string frame);

  // The rank's process ended, or it closed its sockets: peers notice after they have received what
  // it sent and after `delay` (a big process takes long to be torn down).
  void CloseAll(Rank rank, Duration delay);

  // The next frame is lost, which a real stream never does: for Sabotage::kLoseFrame.
  void LoseNextFrame() { lose_next_ = true; }

  // The most frames that were under way in one direction at one time.
  int64_t max_in_flight() const { return max_in_flight_; }

  // What one rank sent and received.
  struct Load {
    Rank rank = kNoRank;
    int64_t messages = 0;
    int64_t goodbyes = 0;  // of them
    int64_t bytes = 0;
  };
  // Of the rank with the most messages.
  Load busiest() const;

 private:
  struct Direction {
    Duration latency = 0;
    TimePoint last_arrival = 0;
    int64_t in_flight = 0;
  };
  // Directions 2 * r (r to 0) and 2 * r + 1 (0 to r).
  Direction& Between(Rank from, Rank to);
  TimePoint Arrival(Direction* direction, Duration delay);

  VirtualClock* const clock_;
  Random random_;
  const Sink sink_;
  std::vector<Direction> directions_;
  std::vector<bool> closed_;
  std::vector<Load> loads_;  // by rank
  bool lose_next_ = false;
  int64_t max_in_flight_ = 0;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_NETWORK_H_
