#include "ops/runtime/backend/algorithms/ring_allreduce.h"

namespace tfring {
namespace {

// The chunk that `self` sends in round `round` of 2 (N-1); what it receives is the chunk that its
// left neighbour sends in that round.
int ChunkSent(int self, int round, int size) { return ((self - round) % size + size) % size; }

}  // namespace

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

}  // namespace tfring
