#include "ops/runtime/backend/algorithms/direct_allreduce.h"

#include "ops/runtime/backend/algorithms/canonical_sum.h"

namespace tfring {

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

}  // namespace tfring
