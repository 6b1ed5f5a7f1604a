#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLREDUCE_CHOICE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLREDUCE_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/backend/algorithms/allreduce.h"
#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"
#include "ops/runtime/backend/algorithms/host_costs.h"
#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"

namespace tfring {

// A way to run an allreduce among members that are all connected with each other.
struct AllreduceOption {
  Schedule (*flat)(const ReduceShape&) = nullptr;  // knows nothing of hosts; null: hierarchical
  HierarchicalPlan plan;                           // if so
  const char* name = "";                           // Schedule::algorithm
  double seconds = 0;                              // its price; 0 within a host, which has none
};

// What comes into question for `size` members and `bytes`, the chosen one first, which all members
// choose alike. Over several hosts the others follow, the cheapest ones first.
std::vector<AllreduceOption> AllreduceOptions(int size, int64_t bytes, const Config& config,
                                              const HostLayout& layout);

// Its schedule for `shape.self`.
Schedule ScheduleOf(const AllreduceOption& option, const ReduceShape& shape,
                    const HostLayout& layout);

// For people: what connects ranks on these hosts (by rank), and for some sizes from 4 B to 64 MiB
// what is chosen, and what everything that came into question is expected to take. A line for each;
// none where there are fewer than two hosts.
TFRING_EXPORT std::vector<std::string> AllreducePrices(const std::vector<std::string>& hosts,
                                                       const Config& config);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ALLREDUCE_CHOICE_H_
