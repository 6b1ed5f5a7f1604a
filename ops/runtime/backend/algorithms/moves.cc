#include "ops/runtime/backend/algorithms/moves.h"

#include <numeric>
#include <vector>

namespace tfring {
namespace {

// Builds one allgather: the blocks as ranges of the output, and the steps that receive them.
class Gather {
 public:
  Gather(const char* algorithm, const BlocksShape& shape)
      : builder_(algorithm), shape_(shape), begin_(shape.size() + 1, 0), arrived_(shape.size()) {
    std::partial_sum(shape.block_bytes.begin(), shape.block_bytes.end(), begin_.begin() + 1);
    const Pieces own = PiecesOf(shape.self);
    for (int64_t i = 0; i < own.count; ++i) {
      builder_.Copy({Space::kInput, own.Begin(i), own.Bytes(i)}, Output(shape.self, own, i), false);
    }
  }

  // Sends the own block from the input, or another block once it has arrived.
  void Send(int peer, int block) {
    const Pieces pieces = PiecesOf(block);
    for (int64_t i = 0; i < pieces.count; ++i) {
      if (block == shape_.self) {
        builder_.Send(peer, {Space::kInput, pieces.Begin(i), pieces.Bytes(i)});
      } else {
        builder_.Send(peer, Output(block, pieces, i), {arrived_[block][i]});
      }
    }
  }

  void Recv(int peer, int block) {
    const Pieces pieces = PiecesOf(block);
    for (int64_t i = 0; i < pieces.count; ++i) {
      arrived_[block].push_back(builder_.Recv(peer, Output(block, pieces, i)));
    }
  }

  Schedule Take() { return builder_.Take(); }

 private:
  Pieces PiecesOf(int block) const {
    return Pieces(shape_.block_bytes[block], 1, shape_.piece_bytes);
  }
  Range Output(int block, const Pieces& pieces, int64_t i) const {
    return {Space::kOutput, begin_[block] + pieces.Begin(i), pieces.Bytes(i)};
  }

  ScheduleBuilder builder_;
  const BlocksShape& shape_;
  std::vector<int64_t> begin_;
  std::vector<std::vector<int>> arrived_;  // [block][piece]
};

Range Block(Space space, const std::vector<int64_t>& bytes, int block) {
  return {space, std::accumulate(bytes.begin(), bytes.begin() + block, int64_t{0}), bytes[block]};
}

Range Own(const BlocksShape& shape, Space space) {
  return {space, 0, shape.block_bytes[shape.self]};
}

// Calls add(piece) for the pieces of a block, in the same order on both ranks.
template <typename Add>
void ForPieces(const BlocksShape& shape, Range whole, Add add) {
  const Pieces pieces(whole.bytes, 1, shape.piece_bytes);
  for (int64_t i = 0; i < pieces.count; ++i) {
    add(Range{whole.space, whole.offset + pieces.Begin(i), pieces.Bytes(i)});
  }
}

void Send(ScheduleBuilder* builder, const BlocksShape& shape, int peer, Range block) {
  ForPieces(shape, block, [&](Range piece) { builder->Send(peer, piece); });
}

void Recv(ScheduleBuilder* builder, const BlocksShape& shape, int peer, Range block) {
  ForPieces(shape, block, [&](Range piece) { builder->Recv(peer, piece); });
}

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

Schedule RingAllgather(const BlocksShape& shape) {
  Gather gather("ring_allgather", shape);
  const int n = shape.size();
  for (int round = 0; round < n - 1; ++round) {
    gather.Send((shape.self + 1) % n, (shape.self + n - round) % n);
    gather.Recv((shape.self + n - 1) % n, (shape.self + 2 * n - 1 - round) % n);
  }
  return gather.Take();
}

Schedule DirectAllgather(const BlocksShape& shape) {
  Gather gather("direct_allgather", shape);
  const int n = shape.size();
  for (int distance = 1; distance < n; ++distance) {
    gather.Send((shape.self + distance) % n, shape.self);
    gather.Recv((shape.self + n - distance) % n, (shape.self + n - distance) % n);
  }
  return gather.Take();
}

Schedule DirectGather(const BlocksShape& shape) {
  ScheduleBuilder builder("direct_gather");
  if (shape.self != shape.root) {
    Send(&builder, shape, shape.root, Own(shape, Space::kInput));
    return builder.Take();
  }
  for (int distance = 1; distance < shape.size(); ++distance) {
    const int peer = (shape.self + distance) % shape.size();
    Recv(&builder, shape, peer, Block(Space::kOutput, shape.block_bytes, peer));
  }
  builder.CopyInPieces(Own(shape, Space::kInput),
                       Block(Space::kOutput, shape.block_bytes, shape.self), shape.piece_bytes);
  return builder.Take();
}

Schedule DirectScatter(const BlocksShape& shape) {
  ScheduleBuilder builder("direct_scatter");
  if (shape.self != shape.root) {
    Recv(&builder, shape, shape.root, Own(shape, Space::kOutput));
    return builder.Take();
  }
  for (int distance = 1; distance < shape.size(); ++distance) {
    const int peer = (shape.self + distance) % shape.size();
    Send(&builder, shape, peer, Block(Space::kInput, shape.block_bytes, peer));
  }
  builder.CopyInPieces(Block(Space::kInput, shape.block_bytes, shape.self),
                       Own(shape, Space::kOutput), shape.piece_bytes);
  return builder.Take();
}

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

Schedule PairwiseAlltoall(const AlltoallShape& shape) {
  ScheduleBuilder builder("pairwise_alltoall");
  const int n = static_cast<int>(shape.send_bytes.size());
  for (int distance = 1; distance < n; ++distance) {
    const int to = (shape.self + distance) % n;
    const int from = (shape.self + n - distance) % n;
    const Range sent = Block(Space::kInput, shape.send_bytes, to);
    const Range received = Block(Space::kOutput, shape.recv_bytes, from);
    if (sent.bytes > 0) builder.Send(to, sent);
    if (received.bytes > 0) builder.Recv(from, received);
  }
  builder.CopyInPieces(Block(Space::kInput, shape.send_bytes, shape.self),
                       Block(Space::kOutput, shape.recv_bytes, shape.self), shape.piece_bytes);
  return builder.Take();
}

Schedule SendRecv(int self, int source, int64_t bytes) {
  ScheduleBuilder builder("send_recv");
  if (bytes == 0) return builder.Take();
  if (self == source) {
    builder.Send(1 - self, {Space::kInput, 0, bytes});
  } else {
    builder.Recv(source, {Space::kOutput, 0, bytes});
  }
  return builder.Take();
}

}  // namespace tfring
