#include "ops/runtime/backend/algorithms/broadcast.h"

#include <vector>

namespace tfring {
namespace {

// Receives the data from `source` (-1: this rank is the root) in pieces, and sends each piece to
// the `targets` in order.
Schedule Relay(const char* algorithm, const BroadcastShape& shape, int source,
               const std::vector<int>& targets, int64_t piece_bytes) {
  ScheduleBuilder builder(algorithm);
  const bool root = source < 0;
  const Pieces pieces(shape.bytes, 1, piece_bytes);
  for (int64_t i = 0; i < pieces.count; ++i) {
    const Range output{Space::kOutput, pieces.Begin(i), pieces.Bytes(i)};
    const Range input{Space::kInput, pieces.Begin(i), pieces.Bytes(i)};
    const int arrived = root ? kNoStep : builder.Recv(source, output);
    for (int target : targets) builder.Send(target, root ? input : output, {arrived});
    if (root) builder.Copy(input, output, false);
  }
  return builder.Take();
}

}  // namespace

Schedule TreeBroadcast(const BroadcastShape& shape) {
  // Positions relative to the root.
  const int self = (shape.self - shape.root + shape.size) % shape.size;
  auto position = [&](int relative) { return (relative + shape.root) % shape.size; };
  int mask = 1;
  while (mask < shape.size && (self & mask) == 0) mask <<= 1;
  const int source = self == 0 ? -1 : position(self - mask);
  std::vector<int> targets;  // the largest subtree first
  for (mask >>= 1; mask > 0; mask >>= 1) {
    if (self + mask < shape.size) targets.push_back(position(self + mask));
  }
  return Relay("tree_broadcast", shape, source, targets, shape.bytes > 0 ? shape.bytes : 1);
}

Schedule ChainBroadcast(const BroadcastShape& shape) {
  const int right = (shape.self + 1) % shape.size;
  const int left = (shape.self + shape.size - 1) % shape.size;
  std::vector<int> targets;
  if (right != shape.root) targets.push_back(right);
  const int source = shape.self == shape.root ? -1 : left;
  return Relay("chain_broadcast", shape, source, targets, shape.piece_bytes);
}

}  // namespace tfring
