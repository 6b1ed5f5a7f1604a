#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ADASUM_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ADASUM_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What the schedule of an Adasum depends on. Unlike other reductions, it depends on where tensors
// begin and end, because each tensor has separate factors.
struct AdasumShape {
  int self = 0;
  int size = 1;
  std::vector<int64_t> tensor_bytes;
  int64_t element_bytes = 1;
  int64_t piece_bytes = 1;
};

// Adasum (Maleki et al. 2020; the formula is in reduction/adasum_kernels.h) along a binary tree
// over the positions. As in TwoPhaseAllreduce, slice j of all inputs goes to rank j, which combines
// its slice of all N gradients, and the results go to all ranks at the end. The factors of a pair
// of gradients need dot products over whole tensors, of which several ranks may hold parts: on each
// level of the tree these ranks exchange the dot products of their parts (24 bytes per pair), and
// all add them up in order of rank, so that all use the same factors to the last bit. log2 N + 2
// hops, 2 (N-1)/N S bytes sent and the dot products.
Schedule AdasumAllreduce(const AdasumShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ADASUM_H_
