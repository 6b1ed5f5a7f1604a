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

// Calls add(piece) for the pieces of a block, the same as on the ranks that pass the block on.
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

// Passes a block of another rank on from one neighbour to the other.
void Forward(ScheduleBuilder* builder, const RootedShape& shape, ScratchWindow* window, int from,
             int to, int block) {
  ForPieces(shape, {Space::kScratch, 0, shape.block_bytes[block]}, [&](Range piece) {
    const Range slot = window->Next(piece.bytes);
    const int arrived = builder->Recv(from, slot, {window->FreedBy()});
    window->SentBy(builder->Send(to, slot, {arrived}));
  });
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

Schedule LineGather(const RootedShape& shape) {
  ScheduleBuilder builder("line_gather");
  const int self = shape.self;
  if (self == shape.root) {
    // The nearer blocks come first, from either side.
    for (int block = self - 1; block >= 0; --block) {
      Recv(&builder, shape, self - 1, BlockOf(shape, Space::kOutput, block));
    }
    for (int block = self + 1; block < shape.size(); ++block) {
      Recv(&builder, shape, self + 1, BlockOf(shape, Space::kOutput, block));
    }
    builder.CopyInPieces(Own(shape, Space::kInput), BlockOf(shape, Space::kOutput, self),
                         shape.piece_bytes);
    return builder.Take();
  }
  const int towards = self < shape.root ? 1 : -1;
  Send(&builder, shape, self + towards, Own(shape, Space::kInput));
  ScratchWindow window(&builder, shape.piece_bytes);
  for (int block = self - towards; block >= 0 && block < shape.size(); block -= towards) {
    Forward(&builder, shape, &window, self - towards, self + towards, block);
  }
  return builder.Take();
}

Schedule LineScatter(const RootedShape& shape) {
  ScheduleBuilder builder("line_scatter");
  const int self = shape.self;
  const int last = shape.size() - 1;
  if (self == shape.root) {
    // Blocks that have the farthest to go first, to either side.
    for (int block = 0; block < self; ++block) {
      Send(&builder, shape, self - 1, BlockOf(shape, Space::kInput, block));
    }
    for (int block = last; block > self; --block) {
      Send(&builder, shape, self + 1, BlockOf(shape, Space::kInput, block));
    }
    builder.CopyInPieces(BlockOf(shape, Space::kInput, self), Own(shape, Space::kOutput),
                         shape.piece_bytes);
    return builder.Take();
  }
  const int away = self < shape.root ? -1 : 1;
  ScratchWindow window(&builder, shape.piece_bytes);
  for (int block = away < 0 ? 0 : last; block != self; block -= away) {
    Forward(&builder, shape, &window, self - away, self + away, block);
  }
  Recv(&builder, shape, self - away, Own(shape, Space::kOutput));
  return builder.Take();
}

}  // namespace tfring
