#ifndef TFRING_OPS_SIM_CONTROL_WIRES_H_
#define TFRING_OPS_SIM_CONTROL_WIRES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/sim/virtual_clock.h"

namespace tfring::sim {

// What control messages cost, on every rank alike.
struct Costs {
  Duration latency = 20 * kMicrosecond;  // from one rank to another
  double bytes_per_second = 1.25e9;      // of one rank, in each direction
  Duration message = 5 * kMicrosecond;   // of the processor, to send one and to receive one
  // Of rank 0's processor, for one tensor of one rank: in full, by the number in the response
  // cache.
  Duration request = 400;
  Duration cache_id = 200;
};

// Messages between any two ranks at these costs. The processor of a rank does one thing after the
// other, and its link carries one message after the other in each direction, so that a rank that
// many send to is late. Messages between two ranks keep their order. Lives for one run.
class Wires {
 public:
  // What one rank has sent and received.
  struct Load {
    int64_t messages = 0;
    int64_t bytes = 0;
  };

  Wires(int size, const Costs& costs, VirtualClock* clock);

  // `arrived` is called when `to` has received it.
  void Send(Rank from, Rank to, size_t bytes, std::function<void()> arrived);

  // The processor of the rank works for so long from now on, or from when it is free.
  void Work(Rank rank, Duration duration);
  TimePoint FreeAt(Rank rank) const;

  // `rounds` times each rank sends one message and waits for one; returns how long that takes.
  Duration AllExchange(int64_t rounds, size_t bytes);

  // Begins a new count of messages, bytes and hops.
  void Reset();
  int64_t messages() const { return messages_; }
  Load busiest() const;  // the most messages and the most bytes, perhaps of two ranks
  int64_t hops() const;  // of the longest chain of messages that each wait for the one before

 private:
  struct Port {
    TimePoint processor_free = 0;
    TimePoint out_free = 0;
    TimePoint in_free = 0;
    int64_t hops = 0;
    Load load;
  };
  Port& At(Rank rank) { return ports_[static_cast<size_t>(rank)]; }
  Duration TransferTime(size_t bytes) const;
  void Arrive(Rank to, size_t bytes, int64_t hops, std::function<void()> arrived);

  const Costs costs_;
  VirtualClock* const clock_;
  std::vector<Port> ports_;
  int64_t messages_ = 0;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CONTROL_WIRES_H_
