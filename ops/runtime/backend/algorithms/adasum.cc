#include "ops/runtime/backend/algorithms/adasum.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfring {
namespace {

// A part of a slice that lies within one tensor.
struct Chunk {
  size_t tensor = 0;
  int64_t offset = 0;  // in the concatenation of all tensors
  int64_t bytes = 0;
};

// A gradient in the tree, an input or a combined one: this rank's slice of it, and the steps that
// made it.
struct Node {
  Space space = Space::kScratch;
  int64_t begin = 0;       // of the slice
  std::vector<int> ready;  // by chunk
};

// A tensor with a part in this rank's slice.
struct Share {
  size_t tensor = 0;
  std::vector<int> ranks;  // ranks with parts, this rank included; ascending
};

// The dot products of one tensor for all pairs of a level.
struct Sums {
  int64_t offset = 0;  // in scratch, by pair
  int ready = kNoStep;
};

// Builds the schedule: Exchange the slices, Combine the tree level by level, Spread the result.
class Adasum {
 public:
  explicit Adasum(const AdasumShape& shape)
      : shape_(shape), begin_(shape.tensor_bytes.size() + 1, 0), builder_("adasum_allreduce") {
    std::partial_sum(shape.tensor_bytes.begin(), shape.tensor_bytes.end(), begin_.begin() + 1);
    slices_ = {begin_.back() / shape.element_bytes, shape.element_bytes, shape.size};
    own_ = ChunksOf(shape.self);
    for (const Chunk& chunk : own_) {
      if (shares_.empty() || shares_.back().tensor != chunk.tensor) {
        shares_.push_back({chunk.tensor, HoldersOf(chunk.tensor)});
      }
    }
    // The dot products accumulate from zero, chunk by chunk.
    const int64_t products = static_cast<int64_t>(shares_.size()) * (shape.size - 1);
    next_dots_ = builder_.AddZeroedScratch(products * kAdasumDotsBytes);
  }

  Schedule Build() {
    std::vector<Node> level = Exchange();
    while (level.size() > 1) level = Combine(level);
    Spread(level[0]);
    return builder_.Take();
  }

 private:
  std::vector<Chunk> ChunksOf(int slice) const {
    std::vector<Chunk> chunks;
    const int64_t slice_begin = slices_.Begin(slice);
    const int64_t slice_end = slices_.Begin(slice + 1);
    for (size_t t = 0; t + 1 < begin_.size(); ++t) {
      const int64_t from = std::max(begin_[t], slice_begin);
      const int64_t to = std::min(begin_[t + 1], slice_end);
      if (from >= to) continue;
      const Pieces pieces(to - from, shape_.element_bytes, shape_.piece_bytes);
      for (int64_t i = 0; i < pieces.count; ++i) {
        chunks.push_back({t, from + pieces.Begin(i), pieces.Bytes(i)});
      }
    }
    return chunks;
  }

  std::vector<int> HoldersOf(size_t tensor) const {
    std::vector<int> ranks;
    for (int r = 0; r < shape_.size; ++r) {
      const int64_t from = std::max(begin_[tensor], slices_.Begin(r));
      if (from < std::min(begin_[tensor + 1], slices_.Begin(r + 1))) ranks.push_back(r);
    }
    return ranks;
  }

  Range At(const Node& node, const Chunk& chunk) const {
    return {node.space, node.begin + chunk.offset - slices_.Begin(shape_.self), chunk.bytes};
  }

  int Before(int distance) const { return (shape_.self + shape_.size - distance) % shape_.size; }
  int After(int distance) const { return (shape_.self + distance) % shape_.size; }

  // Sends each slice to its rank; returns this rank's slices of all inputs, the leaves of the tree.
  std::vector<Node> Exchange() {
    for (int distance = 1; distance < shape_.size; ++distance) {
      for (const Chunk& chunk : ChunksOf(After(distance))) {
        builder_.Send(After(distance), {Space::kInput, chunk.offset, chunk.bytes});
      }
    }
    std::vector<Node> level(shape_.size);
    level[shape_.self] = {Space::kInput, slices_.Begin(shape_.self),
                          std::vector<int>(own_.size(), kNoStep)};
    for (int distance = 1; distance < shape_.size; ++distance) {
      Node& node = level[Before(distance)];
      node.begin = builder_.AddScratch(slices_.Bytes(shape_.self));
      for (const Chunk& chunk : own_) {
        node.ready.push_back(builder_.Recv(Before(distance), At(node, chunk)));
      }
    }
    return level;
  }

  std::vector<Node> Combine(const std::vector<Node>& level) {
    std::vector<Sums> sums = OwnDots(level);
    for (size_t s = 0; s < shares_.size(); ++s) {
      sums[s] =
          AddUp(shares_[s], sums[s], static_cast<int64_t>(level.size() / 2) * kAdasumDotsBytes);
    }
    std::vector<Node> above;
    for (size_t pair = 0; pair < level.size() / 2; ++pair) {
      const Node& left = level[2 * pair];
      const Node& right = level[2 * pair + 1];
      Node into = left.space == Space::kScratch ? left : right;
      const bool root = level.size() == 2;
      if (root) into = {Space::kOutput, slices_.Begin(shape_.self), {}};
      into.ready.clear();
      ForOwn([&](size_t c, size_t share) {
        const int64_t dots = sums[share].offset + static_cast<int64_t>(pair) * kAdasumDotsBytes;
        into.ready.push_back(
            builder_.AdasumCombine(At(left, own_[c]), At(right, own_[c]), At(into, own_[c]), dots,
                                   root, {sums[share].ready, left.ready[c], right.ready[c]}));
      });
      above.push_back(std::move(into));
    }
    if (level.size() % 2 == 1) above.push_back(level.back());
    return above;
  }

  // Returns the dot products over this rank's parts of the tensors, for all pairs of a level.
  std::vector<Sums> OwnDots(const std::vector<Node>& level) {
    const size_t pairs = level.size() / 2;
    std::vector<Sums> sums(shares_.size());
    for (Sums& sum : sums) {
      sum.offset = next_dots_;
      next_dots_ += static_cast<int64_t>(pairs) * kAdasumDotsBytes;
    }
    std::vector<std::vector<int>> last(shares_.size(), std::vector<int>(pairs, kNoStep));
    for (size_t pair = 0; pair < pairs; ++pair) {
      const Node& left = level[2 * pair];
      const Node& right = level[2 * pair + 1];
      // Each step waits for the previous one, so the order of summation is fixed.
      ForOwn([&](size_t c, size_t share) {
        const int64_t dots = sums[share].offset + static_cast<int64_t>(pair) * kAdasumDotsBytes;
        int& before = last[share][pair];
        before = builder_.AdasumDots(At(left, own_[c]), At(right, own_[c]), dots,
                                     {left.ready[c], right.ready[c], before});
      });
    }
    for (size_t s = 0; s < sums.size(); ++s) sums[s].ready = builder_.Join(last[s]);
    return sums;
  }

  // Adds up the dot products of all ranks with parts of a tensor. Two ranks share at most one
  // tensor, so they exchange one message per level.
  Sums AddUp(const Share& share, const Sums& own, int64_t bytes) {
    if (share.ranks.size() == 1) return own;
    std::vector<Sums> parts;
    for (int rank : share.ranks) {
      if (rank == shape_.self) {
        parts.push_back(own);
        continue;
      }
      builder_.Send(rank, {Space::kScratch, own.offset, bytes}, {own.ready});
      const int64_t slot = builder_.AddScratch(bytes);
      parts.push_back({slot, builder_.Recv(rank, {Space::kScratch, slot, bytes})});
    }
    Sums total{builder_.AddScratch(bytes), kNoStep};
    const Range into{Space::kScratch, total.offset, bytes};
    Sums sum = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) {
      const int added = builder_.AdasumAdd({Space::kScratch, sum.offset, bytes},
                                           {Space::kScratch, parts[i].offset, bytes}, into,
                                           {sum.ready, parts[i].ready});
      sum = {total.offset, added};
    }
    return sum;
  }

  void Spread(const Node& result) {
    for (int distance = 1; distance < shape_.size; ++distance) {
      for (size_t c = 0; c < own_.size(); ++c) {
        builder_.Send(After(distance), At(result, own_[c]), {result.ready[c]});
      }
      for (const Chunk& chunk : ChunksOf(Before(distance))) {
        builder_.Recv(Before(distance), {Space::kOutput, chunk.offset, chunk.bytes});
      }
    }
  }

  // Calls visit(chunk, share) for each chunk of this rank's slice and the chunk's share.
  template <typename Visit>
  void ForOwn(Visit visit) const {
    size_t share = 0;
    for (size_t c = 0; c < own_.size(); ++c) {
      if (shares_[share].tensor != own_[c].tensor) ++share;
      visit(c, share);
    }
  }

  const AdasumShape& shape_;
  std::vector<int64_t> begin_;  // of each tensor
  ScheduleBuilder builder_;
  Slices slices_;
  std::vector<Chunk> own_;
  std::vector<Share> shares_;
  int64_t next_dots_ = 0;
};

}  // namespace

Schedule AdasumAllreduce(const AdasumShape& shape) { return Adasum(shape).Build(); }

}  // namespace tfring
