#include "ops/sim/control/wires.h"

#include <algorithm>
#include <utility>

namespace tfring::sim {

Wires::Wires(int size, const Costs& costs, VirtualClock* clock)
    : costs_(costs), clock_(clock), ports_(static_cast<size_t>(size)) {}

Duration Wires::TransferTime(size_t bytes) const {
  return static_cast<Duration>(1e9 * static_cast<double>(bytes) / costs_.bytes_per_second);
}

void Wires::Send(Rank from, Rank to, size_t bytes, std::function<void()> arrived) {
  Port& port = At(from);
  ++messages_;
  ++port.load.messages;
  port.load.bytes += static_cast<int64_t>(bytes);
  Work(from, costs_.message);
  port.out_free = std::max(port.out_free, port.processor_free) + TransferTime(bytes);
  clock_->At(port.out_free + costs_.latency,
             [this, to, bytes, hops = port.hops + 1, arrived = std::move(arrived)]() mutable {
               Arrive(to, bytes, hops, std::move(arrived));
             });
}

// The first of its bytes are there. On an idle link the last came with them, as far as costs go:
// the sender has paid for the transfer.
void Wires::Arrive(Rank to, size_t bytes, int64_t hops, std::function<void()> arrived) {
  Port& port = At(to);
  ++port.load.messages;
  port.load.bytes += static_cast<int64_t>(bytes);
  port.in_free = std::max(clock_->Now(), port.in_free + TransferTime(bytes));
  port.processor_free = std::max(port.processor_free, port.in_free) + costs_.message;
  clock_->At(port.processor_free, [this, to, hops, arrived = std::move(arrived)] {
    At(to).hops = std::max(At(to).hops, hops);
    arrived();
  });
}

void Wires::Work(Rank rank, Duration duration) {
  Port& port = At(rank);
  port.processor_free = std::max(port.processor_free, clock_->Now()) + duration;
}

TimePoint Wires::FreeAt(Rank rank) const {
  return std::max(clock_->Now(), ports_[static_cast<size_t>(rank)].processor_free);
}

Duration Wires::AllExchange(int64_t rounds, size_t bytes) {
  messages_ += rounds * static_cast<int64_t>(ports_.size());
  for (Port& port : ports_) {
    port.load.messages += 2 * rounds;
    port.load.bytes += 2 * rounds * static_cast<int64_t>(bytes);
    port.hops += rounds;
  }
  return rounds * (2 * costs_.message + costs_.latency + TransferTime(bytes));
}

void Wires::Reset() {
  messages_ = 0;
  for (Port& port : ports_) {
    port.load = {};
    port.hops = 0;
  }
}

Wires::Load Wires::busiest() const {
  Load most;
  for (const Port& port : ports_) {
    most.messages = std::max(most.messages, port.load.messages);
    most.bytes = std::max(most.bytes, port.load.bytes);
  }
  return most;
}

int64_t Wires::hops() const {
  int64_t most = 0;
  for (const Port& port : ports_) most = std::max(most, port.hops);
  return most;
}

}  // namespace tfring::sim
