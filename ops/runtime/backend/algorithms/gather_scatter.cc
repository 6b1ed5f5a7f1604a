#include "ops/runtime/backend/algorithms/gather_scatter.h"

#include <algorithm>
#include <numeric>

namespace tfring {
namespace {

Range BlockOf(const RootedShape& shape, Space space, int block) {
  return {space, shape.Begin(block), shape.block_bytes[block]};
}

Range Own(const RootedShape& shape, Space space) {
  return {space, 0, shape.block_bytes[shape.self]};
}

// Calls add(piece) for the pieces of a block, in the same order on both ranks.
template <typename Add>
void ForPieces(const RootedShape& shape, Range whole, Add add) {
  const Pieces pieces(whole.bytes, 1, shape.piece_bytes);
  for (int64_t i = 0; i < pieces.count; ++i) {
    add(Range{whole.space, whole.offset + pieces.Begin(i), pieces.Bytes(i)});
  }
}

void Send(ScheduleBuilder* builder, const RootedShape& shape, int peer, Range block) {
  ForPieces(shape, block, [&](Range piece) { builder->Send(peer, piece); });
}

void Recv(ScheduleBuilder* builder, const RootedShape& shape, int peer, Range block) {
  ForPieces(shape, block, [&](Range piece) { builder->Recv(peer, piece); });
}

}  // namespace

int64_t RootedShape::Begin(int block) const {
  return std::accumulate(block_bytes.begin(), block_bytes.begin() + block, int64_t{0});
}

Schedule DirectGather(const RootedShape& shape) {
  ScheduleBuilder builder("direct_gather");
  if (shape.self != shape.root) {
    Send(&builder, shape, shape.root, Own(shape, Space::kInput));
    return builder.Take();
  }
  for (int distance = 1; distance < shape.size(); ++distance) {
    const int peer = (shape.self + distance) % shape.size();
    Recv(&builder, shape, peer, BlockOf(shape, Space::kOutput, peer));
  }
  builder.CopyInPieces(Own(shape, Space::kInput), BlockOf(shape, Space::kOutput, shape.self),
                       shape.piece_bytes);
  return builder.Take();
}

Schedule DirectScatter(const RootedShape& shape) {
  ScheduleBuilder builder("direct_scatter");
  if (shape.self != shape.root) {
    Recv(&builder, shape, shape.root, Own(shape, Space::kOutput));
    return builder.Take();
  }
  for (int distance = 1; distance < shape.size(); ++distance) {
    const int peer = (shape.self + distance) % shape.size();
    Send(&builder, shape, peer, BlockOf(shape, Space::kInput, peer));
  }
  builder.CopyInPieces(BlockOf(shape, Space::kInput, shape.self), Own(shape, Space::kOutput),
                       shape.piece_bytes);
  return builder.Take();
}

}  // namespace tfring
