#include "ops/runtime/protocol/tree/tree_topology.h"

#include <algorithm>

#include "ops/runtime/base/check.h"

namespace tfring {

TreeTopology::TreeTopology(Rank rank, int size, int fan_out) : rank_(rank), subtree_{0, size} {
  TFRING_CHECK(rank >= 0 && rank < size && fan_out >= 2)
      << "rank " << rank << " of " << size << ", fan-out " << fan_out;
  children_ = Divide(subtree_, fan_out);
  while (subtree_.begin != rank) {
    parent_ = subtree_.begin;
    subtree_ = children_[ChildAbove(rank)];
    children_ = Divide(subtree_, fan_out);
    ++depth_;
  }
}

std::vector<RankRange> TreeTopology::Divide(RankRange subtree, int fan_out) {
  const int rest = subtree.end - subtree.begin - 1;
  const int parts = std::min(rest, fan_out);
  std::vector<RankRange> children;
  Rank begin = subtree.begin + 1;
  for (int part = 0; part < parts; ++part) {
    const int size = rest / parts + (part < rest % parts ? 1 : 0);
    children.push_back({begin, begin + size});
    begin += size;
  }
  return children;
}

size_t TreeTopology::ChildAbove(Rank rank) const {
  size_t position = 0;
  while (rank >= children_[position].end) ++position;
  return position;
}

int TreeTopology::PositionOf(Rank child) const {
  for (size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].begin == child) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace tfring
