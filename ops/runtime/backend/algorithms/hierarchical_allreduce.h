#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HIERARCHICAL_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HIERARCHICAL_ALLREDUCE_H_

#include "ops/runtime/backend/algorithms/allreduce.h"
#include "ops/runtime/backend/algorithms/host_layout.h"

namespace tfring {

// How sums of hosts become sums of all.
enum class BetweenHosts {
  kExchange,   // each host sends its sum to all others, and all add them up
  kTwoPhases,  // each host adds up a part of the data, and sends the result to all others
  // Two hosts exchange their sums, then two such pairs, and so on. Only where the number of hosts
  // is a power of two.
  kDoubling,
};

// The name of the algorithm.
const char* NameOf(BetweenHosts between);

// How often hosts can be paired until all are together: log2 of their number. And whether all can.
int PairingRounds(int hosts);
bool CanPair(int hosts);

// How much of a hierarchical allreduce happens where.
struct HierarchicalPlan {
  BetweenHosts between = BetweenHosts::kTwoPhases;
  int workers = 1;  // ranks of a host that add up and talk to other hosts, at most; 1 or more
};

// An allreduce for members on H hosts, that sends as little as can be between them. On each host
// the data is cut evenly among the workers. Within a host every member sends to each worker its
// slice, and the worker adds up what it gets (reduce-scatter); workers of different hosts combine
// their slices; and each worker sends its slice of the result to the members of its host
// (allgather). Where hosts have different numbers of workers, their slices have different ends: the
// data is cut at all of them, into segments that have one worker on every host, so that nobody on a
// host has more to do than the others. For piece after piece, through all stages, with results
// received straight into the output.
//
// A host sends 2 (H-1)/H S bytes to others with kTwoPhases, in two hops, and (H-1) S with
// kExchange, in one: as many on two hosts. Both take H-1 messages of each worker for a hop. With
// one message for a hop, kDoubling (recursive doubling) sends log2(H) S bytes in log2(H) hops.
// Hosts are paired with their neighbours first, so that all three add up in canonical order over
// the hosts. Within a host a rank sends at most 2 S (L-1)/L bytes, in two more hops; L is its
// number of ranks. All elements are added up in one order: the canonical order within each host,
// and over the hosts.
Schedule HierarchicalAllreduce(const ReduceShape& shape, const HostLayout& layout,
                               const HierarchicalPlan& plan);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HIERARCHICAL_ALLREDUCE_H_
