#include <algorithm>
#include <memory>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/sim/control/step_cost.h"

namespace tfring::sim {
namespace {

constexpr size_t kLengthBytes = 4;

// How often 2 has to be multiplied to reach the size.
int CeilLog2(int size) {
  int log = 0;
  while ((int64_t{1} << log) < size) ++log;
  return log;
}

class HorovodSteps {
 public:
  explicit HorovodSteps(const ControlOptions& options)
      : options_(options),
        ring_(options.scheme == "horovod_ring"),
        wires_(options.ranks, options.costs, &clock_) {
    Frame requests;
    requests.type = FrameType::kRequests;
    requests.requests = GradientRequests(options.tensors);
    tensors_ = requests.requests.size();
    request_bytes_ = EncodeFrame(requests).size();
    Frame plans;
    plans.type = FrameType::kPlans;
    plans.plans.emplace_back();
    for (const Request& request : requests.requests) {
      plans.plans[0].items.push_back({request.name, 1, {}});
    }
    response_bytes_ = EncodeFrame(plans).size();
    // A bit for each tensor and three that say what else there is, in whole words.
    bits_bytes_ = (tensors_ + 3 + 63) / 64 * 8;
  }

  StepCost Run(bool first) {
    wires_.Reset();
    const TimePoint begin = clock_.Now();
    Pass(ExchangeBits());
    if (first) {
      if (ring_) {
        Pass(wires_.AllExchange(options_.ranks - 1, kLengthBytes));
        Pass(wires_.AllExchange(options_.ranks - 1, request_bytes_));
      } else {
        Gather();
      }
      wires_.Work(0, options_.ranks * static_cast<int64_t>(tensors_) * options_.costs.request);
      Pass(wires_.FreeAt(0) - clock_.Now());
      Broadcast(0, kLengthBytes);
      Broadcast(0, response_bytes_);
      Finish();
    }
    StepCost cost;
    cost.step = first ? "first" : "steady";
    cost.seconds = static_cast<double>(clock_.Now() - begin) / 1e9;
    cost.hops = wires_.hops();
    cost.messages = wires_.messages();
    cost.busiest = wires_.busiest();
    return cost;
  }

 private:
  // Lets all ranks wait for so long.
  void Pass(Duration duration) {
    clock_.After(duration, [] {});
    Finish();
  }
  void Finish() {
    while (clock_.RunOne()) {
    }
  }

  Duration ExchangeBits() {
    if (ring_) return wires_.AllExchange(2 * (options_.ranks - 1), bits_bytes_);
    const int log = CeilLog2(options_.ranks);
    const bool even = options_.ranks == 1 << log;
    return wires_.AllExchange(even ? log : log + 1, bits_bytes_);
  }

  // Each rank passes on the lengths of its part of a binomial tree, and then sends its requests.
  void Gather() {
    waits_for_.assign(static_cast<size_t>(options_.ranks), 0);
    for (Rank rank = 1; rank < options_.ranks; ++rank) ++waits_for_[Parent(rank)];
    for (Rank rank = 1; rank < options_.ranks; ++rank) {
      if (waits_for_[static_cast<size_t>(rank)] == 0) SendUp(rank);
    }
    Finish();
  }
  static size_t Parent(Rank rank) { return static_cast<size_t>(rank & (rank - 1)); }
  void SendUp(Rank rank) {
    const Rank parent = static_cast<Rank>(Parent(rank));
    const int below = std::min(rank & -rank, options_.ranks - rank);
    wires_.Send(rank, parent, kLengthBytes * static_cast<size_t>(below), [this, parent] {
      if (--waits_for_[static_cast<size_t>(parent)] == 0 && parent != 0) SendUp(parent);
    });
    wires_.Send(rank, 0, request_bytes_, [] {});
  }

  // To the children of `rank` in a binomial tree, the one with the most ranks below it first.
  void Broadcast(Rank rank, size_t bytes) {
    const int last = rank == 0 ? 1 << CeilLog2(options_.ranks) : rank & -rank;
    for (int step = last / 2; step > 0; step /= 2) {
      const Rank child = rank + step;
      if (child >= options_.ranks) continue;
      wires_.Send(rank, child, bytes, [this, child, bytes] { Broadcast(child, bytes); });
    }
  }

  const ControlOptions options_;
  const bool ring_;
  VirtualClock clock_;
  Wires wires_;
  size_t tensors_ = 0;
  size_t request_bytes_ = 0;
  size_t response_bytes_ = 0;
  size_t bits_bytes_ = 0;
  std::vector<int> waits_for_;  // by rank: children that have not sent their lengths
};

}  // namespace

std::vector<StepCost> RunHorovodSteps(const ControlOptions& options) {
  HorovodSteps steps(options);
  std::vector<StepCost> costs;
  costs.push_back(steps.Run(true));
  costs.push_back(steps.Run(false));
  return costs;
}

}  // namespace tfring::sim
