#include "ops/runtime/backend/algorithms/tree_allreduce.h"

namespace tfring {

Schedule TreeAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("tree_allreduce");
  const int64_t bytes = shape.bytes();
  if (bytes == 0) return builder.Take();
  const Range output{Space::kOutput, 0, bytes};
  Range sum{Space::kInput, 0, bytes};
  int last = kNoStep;
  int mask = 1;
  // A position whose bit `mask` is set hands its sum down; the others take in that of the position
  // which differs in this bit.
  for (; mask < shape.size && (shape.self & mask) == 0; mask <<= 1) {
    const int child = shape.self + mask;
    if (child >= shape.size) continue;
    const bool finish = shape.self == 0 && mask * 2 >= shape.size;
    last = builder.RecvReduce(child, sum, output, finish, {last});
    sum = output;
  }
  if (shape.self != 0) {
    const int parent = shape.self - mask;
    builder.Send(parent, sum, {last});
    last = builder.Recv(parent, output);
  }
  for (mask >>= 1; mask > 0; mask >>= 1) {
    if (shape.self + mask < shape.size) builder.Send(shape.self + mask, output, {last});
  }
  return builder.Take();
}

}  // namespace tfring
