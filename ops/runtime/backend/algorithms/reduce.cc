#include "ops/runtime/backend/algorithms/reduce.h"

#include <algorithm>
#include <vector>

#include "ops/runtime/backend/algorithms/canonical_sum.h"

namespace tfring {

Schedule DirectReduce(const ReduceShape& shape, int root) {
  ScheduleBuilder builder("direct_reduce");
  const int64_t bytes = shape.bytes();
  if (bytes == 0) return builder.Take();
  const Range input{Space::kInput, 0, bytes};
  if (shape.self != root) {
    builder.Send(root, input);
    return builder.Take();
  }
  std::vector<Contribution> contributions(shape.size);
  contributions[root] = {input, kNoStep};
  for (int distance = 1; distance < shape.size; ++distance) {
    const int peer = (root + distance) % shape.size;
    const Range slot{Space::kScratch, builder.AddScratch(bytes), bytes};
    contributions[peer] = {slot, builder.Recv(peer, slot)};
  }
  AppendCanonicalSum(&builder, std::move(contributions), {Space::kOutput, 0, bytes}, kNoStep);
  return builder.Take();
}

Schedule TreeReduce(const ReduceShape& shape, int root) {
  ScheduleBuilder builder("tree_reduce");
  const int64_t bytes = shape.bytes();
  if (bytes == 0) return builder.Take();
  Range sum{Space::kInput, 0, bytes};
  const bool top = shape.self == 0;
  const bool leaf = shape.self % 2 == 1 || shape.self + 1 == shape.size;
  Range into{Space::kOutput, 0, bytes};
  if (!leaf && !(top && root == 0)) into = {Space::kScratch, builder.AddScratch(bytes), bytes};
  int last = kNoStep;
  int mask = 1;
  // As in TreeAllreduce.
  for (; mask < shape.size && (shape.self & mask) == 0; mask <<= 1) {
    const int child = shape.self + mask;
    if (child >= shape.size) continue;
    last = builder.RecvReduce(child, sum, into, {mask, std::min(mask, shape.size - child)},
                              top && mask * 2 >= shape.size, {last});
    sum = into;
  }
  if (!top) last = builder.Send(shape.self - mask, sum, {last});
  if (top && root != 0) builder.Send(root, sum, {last});
  if (!top && shape.self == root) builder.Recv(0, {Space::kOutput, 0, bytes}, {last});
  return builder.Take();
}

Schedule ChainReduce(const ReduceShape& shape, int root) {
  ScheduleBuilder builder("chain_reduce");
  const int right = (shape.self + 1) % shape.size;
  const int left = (shape.self + shape.size - 1) % shape.size;
  const bool receives = left != root;
  const bool passes_on = receives && shape.self != root;
  const int summed = (shape.self + shape.size - root - 1) % shape.size;  // members behind this one
  const Pieces pieces(shape.bytes(), shape.element_bytes, shape.piece_bytes);
  ScratchWindow window(&builder, std::min(pieces.piece, pieces.total));
  for (int64_t i = 0; i < pieces.count; ++i) {
    Range sum{Space::kInput, pieces.Begin(i), pieces.Bytes(i)};
    Range into{Space::kOutput, pieces.Begin(i), pieces.Bytes(i)};
    if (passes_on) into = window.Next(pieces.Bytes(i));
    int last = window.FreedBy();
    if (receives) {
      last = builder.RecvReduce(left, sum, into, {1, summed}, shape.self == root, {last});
      sum = into;
    }
    if (shape.self != root) window.SentBy(builder.Send(right, sum, {last}));
  }
  return builder.Take();
}

}  // namespace tfring
