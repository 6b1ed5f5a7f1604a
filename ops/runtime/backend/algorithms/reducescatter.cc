#include "ops/runtime/backend/algorithms/reducescatter.h"

#include <algorithm>
#include <numeric>

#include "ops/runtime/backend/algorithms/canonical_sum.h"

namespace tfring {
namespace {

constexpr int kPiecesInFlight = 2;  // pieces of the own block that are received at the same time
constexpr int64_t kSmallestPiece = 16 << 10;

Range Part(const Range& whole, const Pieces& pieces, int64_t i) {
  return {whole.space, whole.offset + pieces.Begin(i), pieces.Bytes(i)};
}

Range InputBlock(const ReducescatterShape& shape, int block) {
  return {Space::kInput, shape.Begin(block), shape.block_bytes[block]};
}

Range OwnOutput(const ReducescatterShape& shape) {
  return {Space::kOutput, 0, shape.block_bytes[shape.self]};
}

}  // namespace

int64_t ReducescatterShape::Begin(int block) const {
  return std::accumulate(block_bytes.begin(), block_bytes.begin() + block, int64_t{0});
}

// Scratch holds a piece from each other rank at the same time, so the pieces are smaller here.
Pieces DirectPieces(const ReducescatterShape& shape, int block) {
  const int64_t piece_bytes = std::max(shape.piece_bytes / shape.size(), kSmallestPiece);
  return Pieces(shape.block_bytes[block], shape.element_bytes, piece_bytes);
}

std::vector<int> AppendDirectReducescatter(ScheduleBuilder* builder,
                                           const ReducescatterShape& shape, Range own_range) {
  const int n = shape.size();
  const int self = shape.self;
  for (int distance = 1; distance < n; ++distance) {
    const int peer = (self + distance) % n;
    const Pieces pieces = DirectPieces(shape, peer);
    const Range block = InputBlock(shape, peer);
    for (int64_t i = 0; i < pieces.count; ++i) builder->Send(peer, Part(block, pieces, i));
  }
  const Pieces own = DirectPieces(shape, self);
  const int64_t slot_bytes = std::min(own.piece, own.total);
  const int64_t slots = std::min<int64_t>(own.count, kPiecesInFlight) * (n - 1);
  const int64_t scratch = builder->AddScratch(slots * slot_bytes);
  std::vector<int> reduced(own.count, kNoStep);
  for (int64_t i = 0; i < own.count; ++i) {
    std::vector<Contribution> contributions(n);
    contributions[self] = {Part(InputBlock(shape, self), own, i), kNoStep};
    int64_t slot = scratch + (i % kPiecesInFlight) * (n - 1) * slot_bytes;
    for (int distance = 1; distance < n; ++distance, slot += slot_bytes) {
      const int peer = (self + n - distance) % n;
      const Range range{Space::kScratch, slot, own.Bytes(i)};
      const int freed = i < kPiecesInFlight ? kNoStep : reduced[i - kPiecesInFlight];
      contributions[peer] = {range, builder->Recv(peer, range, {freed})};
    }
    reduced[i] =
        AppendCanonicalSum(builder, std::move(contributions), Part(own_range, own, i), kNoStep);
  }
  return reduced;
}

Schedule DirectReducescatter(const ReducescatterShape& shape) {
  ScheduleBuilder builder("direct_reducescatter");
  AppendDirectReducescatter(&builder, shape, OwnOutput(shape));
  return builder.Take();
}

Schedule RingReducescatter(const ReducescatterShape& shape) {
  ScheduleBuilder builder("ring_reducescatter");
  const int n = shape.size();
  const int right = (shape.self + 1) % n;
  const int left = (shape.self + n - 1) % n;
  const int64_t largest = *std::max_element(shape.block_bytes.begin(), shape.block_bytes.end());
  // A round sends what the previous one received, so scratch holds two rounds.
  const int64_t scratch = n > 2 ? builder.AddScratch(2 * largest) : 0;
  auto slot = [&](int round, int64_t bytes) {
    return Range{Space::kScratch, scratch + round % 2 * largest, bytes};
  };
  std::vector<int> ready;  // by piece: the step that made the piece this round sends
  std::vector<int> sends;  // by piece: of the latest round
  int last_send = kNoStep;
  for (int round = 0; round < n - 1; ++round) {
    const int sent = (shape.self + 2 * n - 1 - round) % n;
    const int received = (shape.self + 2 * n - 2 - round) % n;
    const bool last = round == n - 2;
    const Range from =
        round == 0 ? InputBlock(shape, sent) : slot(round - 1, shape.block_bytes[sent]);
    const Pieces out(from.bytes, shape.element_bytes, shape.piece_bytes);
    // This round receives into the memory that the previous round sends from: a piece can come only
    // when that has been sent.
    const std::vector<int> freed = std::move(sends);
    const int all_freed = last_send;
    sends.clear();
    for (int64_t i = 0; i < out.count; ++i) {
      last_send = builder.Send(right, Part(from, out, i), {round == 0 ? kNoStep : ready[i]});
      sends.push_back(last_send);
    }
    const Range input = InputBlock(shape, received);
    const Range into = last ? OwnOutput(shape) : slot(round, input.bytes);
    const Pieces in(input.bytes, shape.element_bytes, shape.piece_bytes);
    ready.assign(in.count, kNoStep);
    for (int64_t i = 0; i < in.count; ++i) {
      const bool same_piece = i < static_cast<int64_t>(freed.size());
      ready[i] = builder.RecvReduce(left, Part(input, in, i), Part(into, in, i), {1, round + 1},
                                    last, {same_piece ? freed[i] : all_freed});
    }
  }
  return builder.Take();
}

}  // namespace tfring
