#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ADASUM_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ADASUM_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/builder.h"

namespace tfring {

// What an Adasum depends on: unlike other reductions, on where tensors begin and end.
struct AdasumShape {
  int self = 0;
  int size = 1;
  std::vector<int64_t> tensor_bytes;
  int64_t element_bytes = 1;
  int64_t piece_bytes = 1;
};

// Slice j of everybody goes to rank j. On each level of the tree the ranks that hold parts of a
// tensor exchange what their parts add to its dot products (24 bytes per pair) and add them up in
// order of rank, so that all use the same factors; then each combines its part. At the end the
// slices go to everybody: 2 (N-1)/N of the data, log2 N + 2 hops, the same bits on all ranks.
Schedule AdasumAllreduce(const AdasumShape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_ADASUM_H_
