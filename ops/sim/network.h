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

// The control connections between rank 0 and each other rank. Each direction of a connection has
// its own latency, which also varies by frame. Frames of one direction keep their order; frames of
// different directions overtake each other. Lives for one run; used by one thread.
class Network {
 public:
  using Sink = std::function<void(Rank to, ControlEvent event)>;

  Network(int size, VirtualClock* clock, Random random, Sink sink);

  // `from` or `to` is rank 0. Drops the frame if either end is closed.
  void Send(Rank from, Rank to, std::string frame);

  // The rank's process ended, or it closed its sockets. Peers notice after they have received its
  // frames and after `delay`, because a large process ends slowly.
  void CloseAll(Rank rank, Duration delay);

  // Returns the most frames that were in flight in one direction.
  int64_t max_in_flight() const { return max_in_flight_; }

 private:
  struct Direction {
    Duration latency = 0;
    TimePoint last_arrival = 0;
    int64_t in_flight = 0;
  };
  // Indices: 2 * r (r to 0) and 2 * r + 1 (0 to r).
  Direction& Between(Rank from, Rank to);
  TimePoint Arrival(Direction* direction, Duration delay);

  VirtualClock* const clock_;
  Random random_;
  const Sink sink_;
  std::vector<Direction> directions_;
  std::vector<bool> closed_;
  int64_t max_in_flight_ = 0;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_NETWORK_H_
