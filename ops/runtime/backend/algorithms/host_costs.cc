#include "ops/runtime/backend/algorithms/host_costs.h"

#include <algorithm>
#include <vector>

namespace tfring {
namespace {

// Costs on a present-day host, in s: rounded results of benchmarks/executor and benchmarks/hosts.
constexpr double kLatencyWithin = 2e-6;   // from rank to rank of one host
constexpr double kMessageBetween = 4e-6;  // CPU time of a rank for a message over a socket
constexpr double kMessageWithin = 3e-6;   // the same over shared memory, when ranks share cores
constexpr double kBytesPerSecondWithin = 4e9;  // per rank, through memory
constexpr int kAllWorkers = 1 << 20;

int Size(const HostLayout& layout) {
  int size = 0;
  for (int host = 0; host < layout.hosts(); ++host) {
    size += static_cast<int>(layout.PositionsOn(host).size());
  }
  return size;
}

double Here(const HostLayout& layout, int host) {
  return static_cast<double>(layout.PositionsOn(host).size());
}

double Largest(const HostLayout& layout) {
  double most = 0;
  for (int host = 0; host < layout.hosts(); ++host) most = std::max(most, Here(layout, host));
  return most;
}

double Smallest(const HostLayout& layout) {
  double least = Here(layout, 0);
  for (int host = 0; host < layout.hosts(); ++host) least = std::min(least, Here(layout, host));
  return least;
}

// For a host whose ranks all send to each rank of the other hosts.
double MostPairs(const HostLayout& layout) {
  double most = 0;
  for (int host = 0; host < layout.hosts(); ++host) {
    most = std::max(most, Here(layout, host) * (Size(layout) - Here(layout, host)));
  }
  return most;
}

void AddLoadBetween(BetweenHosts between, int hosts, double data, HostLoad* load) {
  const double rounds = PairingRounds(hosts);
  const bool pairs = between == BetweenHosts::kDoubling;
  const bool once = between != BetweenHosts::kTwoPhases;
  load->hops_between = (pairs ? rounds : 1) * (once ? 1 : 2);
  load->messages_between = 2 * load->hops_between * (pairs ? 1 : hosts - 1);
  load->bytes_between = data * (pairs ? rounds : hosts - 1);
  if (!once) load->bytes_between = data * 2 * (hosts - 1) / hosts;
}

}  // namespace

HostLoad LoadOfDirect(const HostLayout& layout, int64_t bytes) {
  const auto data = static_cast<double>(bytes);
  const double others = Largest(layout) - 1;
  HostLoad load;
  load.hops_between = 1;
  load.messages_between = 2 * (Size(layout) - Smallest(layout));
  load.messages_within = 2 * others;
  load.bytes_between = MostPairs(layout) * data;
  load.bytes_within = 2 * (Size(layout) - 1) * data;
  return load;
}

HostLoad LoadOfTwoPhases(const HostLayout& layout, int64_t bytes) {
  HostLoad load = LoadOfDirect(layout, bytes);
  load.hops_between *= 2;
  load.messages_between *= 2;
  load.messages_within *= 2;
  load.bytes_between *= 2.0 / Size(layout);
  load.bytes_within *= 2.0 / Size(layout);
  return load;
}

HostLoad LoadOfTree(const HostLayout& layout, int64_t bytes) {
  const int size = Size(layout);
  HostLoad load;
  std::vector<double> sent(layout.hosts(), 0);
  for (int mask = 1; mask < size; mask <<= 1) {
    bool between = false;
    for (int parent = 0; parent + mask < size; parent += 2 * mask) {
      const int above = layout.HostOf(parent);
      const int below = layout.HostOf(parent + mask);
      if (above == below) continue;
      between = true;
      sent[above] += static_cast<double>(bytes);
      sent[below] += static_cast<double>(bytes);
    }
    (between ? load.hops_between : load.hops_within) += 2;
  }
  load.messages_between = load.hops_between;
  load.messages_within = load.hops_within;
  load.bytes_between = *std::max_element(sent.begin(), sent.end());
  load.bytes_within = (load.hops_within + load.hops_between) * static_cast<double>(bytes);
  return load;
}

HostLoad LoadOfRing(const HostLayout& layout, int64_t bytes) {
  const int size = Size(layout);
  const double share = 2.0 * (size - 1) / size * static_cast<double>(bytes);  // of each link
  HostLoad load;
  load.hops_between = 2.0 * layout.hosts();
  load.hops_within = 2.0 * (size - layout.hosts());
  load.messages_between = 4.0 * (size - 1);
  load.bytes_between = share;
  load.bytes_within = 2 * share;
  return load;
}

HostLoad LoadOf(const HostLayout& layout, int64_t bytes, const HierarchicalPlan& plan) {
  const auto data = static_cast<double>(bytes);
  const double others = Largest(layout) - 1;
  const double workers = std::min<double>(plan.workers, Largest(layout));
  HostLoad load;
  AddLoadBetween(plan.between, layout.hosts(), data, &load);
  load.hops_within = others > 0 ? 2 : 0;
  // The two stages of one worker. With several, also those of a rank that is not a worker.
  load.messages_within = 2 * others * (workers > 1 ? 2 : 1);
  load.bytes_within = 2 * others * data * (workers > 1 ? 2 / workers : 1);
  load.bytes_within += 2 * load.bytes_between / workers;
  return load;
}

Network NetworkOf(const Config& config) {
  return {static_cast<double>(config.network_latency) / kSecond,
          static_cast<double>(config.network_bytes_per_second)};
}

double SecondsOf(const HostLoad& load, const Network& network) {
  return load.hops_between * network.latency + load.hops_within * kLatencyWithin +
         load.messages_between * kMessageBetween + load.messages_within * kMessageWithin +
         load.bytes_between / network.bytes_per_second + load.bytes_within / kBytesPerSecondWithin;
}

Network NetworkWithin() { return {kLatencyWithin, kBytesPerSecondWithin}; }

std::vector<HierarchicalPlan> HierarchicalPlans(const HostLayout& layout) {
  std::vector<HierarchicalPlan> plans = {{BetweenHosts::kExchange, 1},
                                         {BetweenHosts::kExchange, kAllWorkers},
                                         {BetweenHosts::kTwoPhases, kAllWorkers}};
  // On two hosts, pairing is the same as an exchange.
  const int hosts = layout.hosts();
  if (hosts >= 4 && CanPair(hosts)) {
    plans.push_back({BetweenHosts::kDoubling, 1});
    plans.push_back({BetweenHosts::kDoubling, kAllWorkers});
  }
  return plans;
}

}  // namespace tfring
