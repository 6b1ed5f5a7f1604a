#include "ops/runtime/backend/algorithms/line_allreduce.h"

namespace tfring {

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
