#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_COSTS_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_COSTS_H_

#include <cstdint>

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
  double bytes_within = 0;   // through the memory of the rank that moves the most
};

// Of the algorithms of allreduce.h, by what they send; `bytes` is the size of the data.
HostLoad LoadOfDirect(const HostLayout& layout, int64_t bytes);
HostLoad LoadOfTree(const HostLayout& layout, int64_t bytes);
HostLoad LoadOfRing(const HostLayout& layout, int64_t bytes);
HostLoad LoadOfTwoPhases(const HostLayout& layout, int64_t bytes);
HostLoad LoadOf(const HostLayout& layout, int64_t bytes, const HierarchicalPlan& plan);

// Seconds, by a latency and a bandwidth for each level: between hosts those of the settings, within
// a host constants. A rough price: it ranks algorithms, and foretells no time.
double SecondsOf(const HostLoad& load, const Config& config);

// The hierarchical allreduce of the lowest price.
HierarchicalPlan CheapestHierarchy(const HostLayout& layout, int64_t bytes, const Config& config);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_COSTS_H_
