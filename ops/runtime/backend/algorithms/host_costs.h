#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_COSTS_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_COSTS_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"
#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/base/config.h"

namespace tfring {

// What an allreduce over several hosts asks of the network and of memory.
struct HostLoad {
  double hops_between = 0;      // one after another, from host to host
  double hops_within = 0;       // and within a host
  double messages_between = 0;  // of the rank that sends and receives the most
  double messages_within = 0;
  double bytes_between = 0;  // of the host that sends the most
  // Through the memory of the rank that moves the most, to other hosts, too.
  double bytes_within = 0;
};

// Of the algorithms of allreduce.h, by what they send; `bytes` is the size of the data. The ring
// goes host by host.
HostLoad LoadOfDirect(const HostLayout& layout, int64_t bytes);
HostLoad LoadOfTree(const HostLayout& layout, int64_t bytes);
HostLoad LoadOfRing(const HostLayout& layout, int64_t bytes);
HostLoad LoadOfTwoPhases(const HostLayout& layout, int64_t bytes);
HostLoad LoadOf(const HostLayout& layout, int64_t bytes, const HierarchicalPlan& plan);

// What connects hosts.
struct Network {
  double latency = 0;           // seconds
  double bytes_per_second = 1;  // out of a host
};
// That of the settings.
Network NetworkOf(const Config& config);

// The price in seconds, from hops, messages and bytes at each level: between hosts by the network,
// within a host by constants. Good enough to rank algorithms, not to predict times.
double SecondsOf(const HostLoad& load, const Network& network);

// Latency and bandwidth within a host, for texts to print.
Network NetworkWithin();

// The hierarchical allreduces that come into question.
std::vector<HierarchicalPlan> HierarchicalPlans(const HostLayout& layout);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_COSTS_H_
