#include "ops/runtime/backend/cpu/direct_reduce_scatter.h"

#include <algorithm>

#include "ops/runtime/backend/cpu/canonical_sum.h"

namespace tfring {
namespace {

constexpr int kWindow = 2;  // pieces of the own slice that are being received at once
constexpr int64_t kSmallestPiece = 16 << 10;

Range At(Space space, const Slices& slices, int slice, const Pieces& pieces, int64_t i) {
  return {space, slices.Begin(slice) + pieces.Begin(i), pieces.Bytes(i)};
}

}  // namespace

Schedule DirectReduceScatterAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("direct_reduce_scatter");
  const int n = shape.size;
  const int self = shape.self;
  const Slices slices{shape.elements, shape.element_bytes, n};
  // The inputs of a piece from all others are in scratch at once.
  const int64_t piece_bytes = std::max(shape.piece_bytes / n, kSmallestPiece);
  auto pieces_of = [&](int slice) {
    return Pieces(slices.Bytes(slice), shape.element_bytes, piece_bytes);
  };
  for (int distance = 1; distance < n; ++distance) {
    const int peer = (self + distance) % n;
    const Pieces pieces = pieces_of(peer);
    for (int64_t i = 0; i < pieces.count; ++i) {
      builder.Send(peer, At(Space::kInput, slices, peer, pieces, i));
    }
  }
  const Pieces own = pieces_of(self);
  const int64_t slot_bytes = std::min(own.piece, own.total);
  const int64_t slots = std::min<int64_t>(own.count, kWindow) * (n - 1);
  const int64_t scratch = builder.AddScratch(slots * slot_bytes);
  std::vector<int> reduced(own.count, kNoStep);
  for (int64_t i = 0; i < own.count; ++i) {
    std::vector<Contribution> contributions(n);
    contributions[self] = {At(Space::kInput, slices, self, own, i), kNoStep};
    int64_t slot = scratch + (i % kWindow) * (n - 1) * slot_bytes;
    for (int distance = 1; distance < n; ++distance, slot += slot_bytes) {
      const int peer = (self + n - distance) % n;
      const Range range{Space::kScratch, slot, own.Bytes(i)};
      const int freed = i < kWindow ? kNoStep : reduced[i - kWindow];
      contributions[peer] = {range, builder.Recv(peer, range, {freed})};
    }
    reduced[i] = AppendCanonicalSum(&builder, std::move(contributions),
                                    At(Space::kOutput, slices, self, own, i), kNoStep);
  }
  for (int distance = 1; distance < n; ++distance) {
    const int to = (self + distance) % n;
    for (int64_t i = 0; i < own.count; ++i) {
      builder.Send(to, At(Space::kOutput, slices, self, own, i), {reduced[i]});
    }
    const int from = (self + n - distance) % n;
    const Pieces pieces = pieces_of(from);
    for (int64_t i = 0; i < pieces.count; ++i) {
      builder.Recv(from, At(Space::kOutput, slices, from, pieces, i));
    }
  }
  return builder.Take();
}

}  // namespace tfring
