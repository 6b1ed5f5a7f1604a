#ifndef TFRING_OPS_SIM_WORKLOAD_H_
#define TFRING_OPS_SIM_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/sim/random.h"

namespace tfring::sim {

// One call that a simulated user makes on one rank.
struct Call {
  Request request;
  // How it ends if nothing is lost and nobody leaves: the ranks may disagree about it on purpose,
  // or it may be invalid on one of them.
  StatusCode expected = StatusCode::kOk;
  bool removed = false;            // its process set goes meanwhile: it fails in one way or another
  std::vector<Rank> participants;  // of its plan; not checked if empty
  ProcessSetId new_set = -1;       // what adding a process set has to give
};

// Calls that one rank makes without waiting in between, in this order; then it waits for all of
// them. One call is what an eager user does, many are what a tf.function does.
using Phase = std::vector<Call>;

// What all ranks do in one run: a function of the name, the size and the seed. Ranks submit the
// calls of a phase in different orders, but blocking calls in orders that can end.
struct Workload {
  std::vector<std::pair<ProcessSetId, std::vector<Rank>>> sets;
  std::vector<std::vector<Phase>> scripts;  // by rank
  Config config;
  size_t largest_phase = 0;
};

// The parts that workloads have in common.
Shape RandomShape(Random* random);
Config RandomConfig(Random* random);
std::vector<Rank> AllRanks(int ranks);

// global: one process set; triangle: {0,1}, {1,2}, {0,2} of three ranks; subsets: random
// overlapping sets; mismatch: like subsets, and some calls disagree in one property; random: every
// kind of collective, see random_workload.h.
// InvalidArgument for another name or a size that does not suit it.
Result<Workload> MakeWorkload(const std::string& name, int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_WORKLOAD_H_
