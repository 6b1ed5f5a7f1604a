#include "ops/runtime/backend/algorithms/allreduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/canonical_sum.h"
#include "ops/runtime/backend/algorithms/reducescatter.h"

namespace tfring {
namespace {

// Returns the chunk that position `self` of the ring sends in a round. It receives the chunk that
// its left neighbour sends in that round.
int ChunkSent(int self, int round, int size) { return ((self - round) % size + size) % size; }

// Piece i of a ring round is sent together with piece i - kRoundLag of the next round. That is soon
// enough for the new sum to be in the cache still, and late enough for the sum to be complete.
constexpr int64_t kRoundLag = 2;

}  // namespace

Schedule DirectAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("direct_allreduce");
  const int64_t bytes = shape.bytes();
  if (bytes == 0) return builder.Take();
  const Range output{Space::kOutput, 0, bytes};
  const Contribution own{{Space::kInput, 0, bytes}, kNoStep};
  std::vector<int> sends;
  std::vector<Contribution> contributions(shape.size);
  contributions[shape.self] = own;
  for (int distance = 1; distance < shape.size; ++distance) {
    sends.push_back(builder.Send((shape.self + distance) % shape.size, own.range));
  }
  for (int distance = 1; distance < shape.size; ++distance) {
    const int peer = (shape.self + shape.size - distance) % shape.size;
    const Range slot{Space::kScratch, builder.AddScratch(bytes), bytes};
    contributions[peer] = {slot, builder.Recv(peer, slot)};
  }
  // The output may be the input: write it only when this rank's part is sent to all ranks.
  AppendCanonicalSum(&builder, std::move(contributions), output, builder.Join(sends));
  return builder.Take();
}

Schedule TreeAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("tree_allreduce");
  const int64_t bytes = shape.bytes();
  if (bytes == 0) return builder.Take();
  const Range output{Space::kOutput, 0, bytes};
  Range sum{Space::kInput, 0, bytes};
  int last = kNoStep;
  int mask = 1;
  // A position with bit `mask` sends its sum to the position without the bit. The others add the
  // sum of the position with the bit.
  for (; mask < shape.size && (shape.self & mask) == 0; mask <<= 1) {
    const int child = shape.self + mask;
    if (child >= shape.size) continue;
    const bool finish = shape.self == 0 && mask * 2 >= shape.size;
    last = builder.RecvReduce(child, sum, output, {mask, std::min(mask, shape.size - child)},
                              finish, {last});
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

Schedule RingAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("ring_allreduce");
  const int n = shape.size;
  const int rounds = 2 * (n - 1);
  const int right = (shape.self + 1) % n;
  const int left = (shape.self + n - 1) % n;
  const Slices chunks{shape.elements, shape.element_bytes, n};
  const auto pieces_of = [&](int chunk) {
    return Pieces(chunks.Bytes(chunk), shape.element_bytes, shape.piece_bytes);
  };
  // made[r][i]: the step that received piece i in round r. The next round sends the piece.
  std::vector<std::vector<int>> made(rounds);
  const int64_t most = pieces_of(0).count;  // no chunk is larger than the first
  const int64_t turns = most + kRoundLag * (rounds - 1);
  for (int64_t turn = 0; turn < turns; ++turn) {
    // Earlier rounds have no piece left.
    const int first = turn < most ? 0 : static_cast<int>((turn - most + kRoundLag) / kRoundLag);
    for (int round = first; round < rounds && turn >= kRoundLag * round; ++round) {
      const int64_t i = turn - kRoundLag * round;
      const int sent = ChunkSent(shape.self, round, n);
      const int received = ChunkSent(left, round, n);
      const Pieces out = pieces_of(sent);
      const Pieces in = pieces_of(received);
      if (i < out.count) {
        builder.Send(right,
                     {round == 0 ? Space::kInput : Space::kOutput,
                      chunks.Begin(sent) + out.Begin(i), out.Bytes(i)},
                     {round == 0 ? kNoStep : made[round - 1][i]});
      }
      if (i < in.count) {
        const int64_t at = chunks.Begin(received) + in.Begin(i);
        const Range dst{Space::kOutput, at, in.Bytes(i)};
        made[round].push_back(round < n - 1
                                  ? builder.RecvReduce(left, {Space::kInput, at, in.Bytes(i)}, dst,
                                                       {1, round + 1}, round == n - 2)
                                  : builder.Recv(left, dst));
      }
    }
  }
  return builder.Take();
}

Schedule TwoPhaseAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("two_phase_allreduce");
  const int n = shape.size;
  const int self = shape.self;
  const Slices slices{shape.elements, shape.element_bytes, n};
  const ReducescatterShape scatter{self, slices.All(), shape.element_bytes, shape.piece_bytes};
  const std::vector<int> reduced = AppendDirectReducescatter(
      &builder, scatter, {Space::kOutput, slices.Begin(self), slices.Bytes(self)});
  auto output = [&](int slice, const Pieces& pieces, int64_t i) {
    return Range{Space::kOutput, slices.Begin(slice) + pieces.Begin(i), pieces.Bytes(i)};
  };
  const Pieces own = DirectPieces(scatter, self);
  for (int distance = 1; distance < n; ++distance) {
    const int to = (self + distance) % n;
    for (int64_t i = 0; i < own.count; ++i) {
      builder.Send(to, output(self, own, i), {reduced[i]});
    }
    const int from = (self + n - distance) % n;
    const Pieces pieces = DirectPieces(scatter, from);
    for (int64_t i = 0; i < pieces.count; ++i) builder.Recv(from, output(from, pieces, i));
  }
  return builder.Take();
}

}  // namespace tfring
