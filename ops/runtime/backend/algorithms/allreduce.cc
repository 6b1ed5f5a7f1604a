#include "ops/runtime/backend/algorithms/allreduce.h"

#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/canonical_sum.h"
#include "ops/runtime/backend/algorithms/reducescatter.h"

namespace tfring {
namespace {

// The chunk that position `self` of the ring sends in a round. What it receives is the chunk that
// its left neighbour sends in that round.
int ChunkSent(int self, int round, int size) { return ((self - round) % size + size) % size; }

}  // namespace

Schedule DirectAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("direct_allreduce");
  const int64_t bytes = shape.bytes();
  if (bytes == 0) return builder.Take();
  const Range input{Space::kInput, 0, bytes};
  std::vector<int> sends;
  std::vector<Contribution> contributions(shape.size);
  contributions[shape.self] = {input, kNoStep};
  for (int distance = 1; distance < shape.size; ++distance) {
    sends.push_back(builder.Send((shape.self + distance) % shape.size, input));
  }
  for (int distance = 1; distance < shape.size; ++distance) {
    const int peer = (shape.self + shape.size - distance) % shape.size;
    const Range slot{Space::kScratch, builder.AddScratch(bytes), bytes};
    contributions[peer] = {slot, builder.Recv(peer, slot)};
  }
  // The output may be the input: it is written only when the input has been sent to all.
  AppendCanonicalSum(&builder, std::move(contributions), {Space::kOutput, 0, bytes},
                     builder.Join(sends));
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
  // A position whose bit `mask` is set sends its sum to the position without this bit; the others
  // add the sum of the position with this bit.
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

Schedule RingAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("ring_allreduce");
  const int n = shape.size;
  const int right = (shape.self + 1) % n;
  const int left = (shape.self + n - 1) % n;
  const Slices chunks{shape.elements, shape.element_bytes, n};
  std::vector<int> ready;  // by piece: the step that made what the next round sends
  for (int round = 0; round < 2 * (n - 1); ++round) {
    const int sent = ChunkSent(shape.self, round, n);
    const int received = ChunkSent(left, round, n);
    const bool reducing = round < n - 1;
    const bool finish = round == n - 2;
    const Space source = round == 0 ? Space::kInput : Space::kOutput;
    const Pieces out(chunks.Bytes(sent), shape.element_bytes, shape.piece_bytes);
    for (int64_t i = 0; i < out.count; ++i) {
      builder.Send(right, {source, chunks.Begin(sent) + out.Begin(i), out.Bytes(i)},
                   {round == 0 ? kNoStep : ready[i]});
    }
    const Pieces in(chunks.Bytes(received), shape.element_bytes, shape.piece_bytes);
    ready.assign(in.count, kNoStep);
    for (int64_t i = 0; i < in.count; ++i) {
      const int64_t at = chunks.Begin(received) + in.Begin(i);
      const Range dst{Space::kOutput, at, in.Bytes(i)};
      ready[i] = reducing ? builder.RecvReduce(left, {Space::kInput, at, in.Bytes(i)}, dst, finish)
                          : builder.Recv(left, dst);
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

Schedule LineAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("line_allreduce");
  const Pieces pieces(shape.bytes(), shape.element_bytes, shape.piece_bytes);
  const bool first = shape.self == 0;
  const bool last = shape.self + 1 == shape.size;
  for (int64_t i = 0; i < pieces.count; ++i) {
    const Range input{Space::kInput, pieces.Begin(i), pieces.Bytes(i)};
    const Range output{Space::kOutput, pieces.Begin(i), pieces.Bytes(i)};
    int sum = kNoStep;
    if (!first) sum = builder.RecvReduce(shape.self - 1, input, output, last);
    if (!last) {
      builder.Send(shape.self + 1, first ? input : output, {sum});
      sum = builder.Recv(shape.self + 1, output);
    }
    if (!first) builder.Send(shape.self - 1, output, {sum});
  }
  return builder.Take();
}

}  // namespace tfring
