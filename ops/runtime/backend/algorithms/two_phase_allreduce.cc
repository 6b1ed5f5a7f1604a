#include "ops/runtime/backend/algorithms/two_phase_allreduce.h"

#include "ops/runtime/backend/algorithms/reducescatter.h"

namespace tfring {

Schedule DirectReduceScatterAllreduce(const ReduceShape& shape) {
  ScheduleBuilder builder("direct_reduce_scatter");
  const int n = shape.size;
  const int self = shape.self;
  const Slices slices{shape.elements, shape.element_bytes, n};
  const ScatterShape scatter{self, slices.All(), shape.element_bytes, shape.piece_bytes};
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
