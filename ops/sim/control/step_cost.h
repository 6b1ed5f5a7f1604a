#ifndef TFRING_OPS_SIM_CONTROL_STEP_COST_H_
#define TFRING_OPS_SIM_CONTROL_STEP_COST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/protocol/message/request.h"
#include "ops/sim/control/wires.h"

namespace tfring::sim {

struct ControlOptions {
  std::string scheme = "tree";  // star, tree, horovod_gather, horovod_ring
  int ranks = 64;
  int tensors = 161;             // as many as ResNet-50 has
  int fan_out = 10;              // of the tree
  Duration hold = kMillisecond;  // see FrameRelay
  Duration skew = 0;             // ranks begin a step within so long, at random
  int others = 0;                // ranks that call in another order, each in its own
  uint64_t seed = 1;
  Costs costs;
};

// What the control messages of one training step cost: from the moment when the last rank has all
// gradients until every rank has been told of all of them.
struct StepCost {
  std::string step;  // "first": requests in full; "steady": all in the response cache
  double seconds = 0;
  int64_t hops = 0;
  int64_t messages = 0;
  Wires::Load busiest;
  // What rank 0's state machines took on the machine that simulates, for each tensor of each rank:
  // not part of `seconds`, which has Costs::request for it.
  double measured_request_ns = 0;
};

// The gradients of ResNet-50 in the order in which backward makes them; if more tensors are wanted
// than it has, those of a second one follow, and so on.
std::vector<Request> GradientRequests(int tensors);

// The star or the tree, with the real negotiators and relays of all ranks: a first step and a
// steady one. Stops with a text if the ranks are not told of all tensors in one order.
std::vector<StepCost> RunRealSteps(const ControlOptions& options);

// The same steps as Horovod does them, of which only the messages are played. Requests and
// responses have the sizes of tfring's.
//
// horovod_gather (MPI): an allreduce of the bits of the response cache by recursive doubling. In
// the first step then a gather of lengths (a binomial tree) and of requests (each rank to rank 0),
// and two broadcasts along a binomial tree. horovod_ring (Gloo): the same allreduce around a ring;
// gloo has no gather of unequal parts, so lengths and requests of all ranks go around the ring.
std::vector<StepCost> RunHorovodSteps(const ControlOptions& options);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_CONTROL_STEP_COST_H_
