#include "ops/runtime/backend/algorithms/allgather.h"

#include <algorithm>
#include <numeric>

namespace tfring {
namespace {

// Builds one allgather: the blocks as ranges of the output, and the steps that receive them.
class Gather {
 public:
  Gather(const char* algorithm, const AllgatherShape& shape)
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
  const AllgatherShape& shape_;
  std::vector<int64_t> begin_;
  std::vector<std::vector<int>> arrived_;  // [block][piece]
};

}  // namespace

Schedule RingAllgather(const AllgatherShape& shape) {
  Gather gather("ring_allgather", shape);
  const int n = shape.size();
  for (int round = 0; round < n - 1; ++round) {
    gather.Send((shape.self + 1) % n, (shape.self + n - round) % n);
    gather.Recv((shape.self + n - 1) % n, (shape.self + 2 * n - 1 - round) % n);
  }
  return gather.Take();
}

Schedule DirectAllgather(const AllgatherShape& shape) {
  Gather gather("direct_allgather", shape);
  const int n = shape.size();
  for (int distance = 1; distance < n; ++distance) {
    gather.Send((shape.self + distance) % n, shape.self);
    gather.Recv((shape.self + n - distance) % n, (shape.self + n - distance) % n);
  }
  return gather.Take();
}

}  // namespace tfring
