#include "ops/runtime/backend/algorithms/alltoall.h"

#include <numeric>

namespace tfring {
namespace {

Range Block(Space space, const std::vector<int64_t>& bytes, int block) {
  return {space, std::accumulate(bytes.begin(), bytes.begin() + block, int64_t{0}), bytes[block]};
}

}  // namespace

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
