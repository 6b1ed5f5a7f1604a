#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TREE_TREE_TOPOLOGY_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TREE_TREE_TOPOLOGY_H_

#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/tree/rank_set.h"

namespace tfring {

// Where one rank stands in the tree of control frames. The ranks of each subtree follow one
// another, its root is the first of them, and the rest is divided among at most `fan_out` children
// in parts that differ by one rank at most. So ranks of one host are mostly in one subtree, and no
// rank is more than ceil(log of size to the base fan_out) steps away from rank 0. A value type;
// every rank computes the same from size and fan-out.
class TreeTopology {
 public:
  // `rank` is below `size`, `fan_out` is at least 2.
  TreeTopology(Rank rank, int size, int fan_out);

  Rank rank() const { return rank_; }
  Rank parent() const { return parent_; }         // kNoRank of rank 0
  int depth() const { return depth_; }            // how many steps from rank 0
  RankRange subtree() const { return subtree_; }  // this rank and all below it
  // The subtrees of the children, ascending; each child is the first rank of its range.
  const std::vector<RankRange>& children() const { return children_; }
  // The child whose subtree has the rank; its position in children(). The rank is below this one.
  size_t ChildAbove(Rank rank) const;
  // Of a rank that is a child; -1 if it is none.
  int PositionOf(Rank child) const;

 private:
  static std::vector<RankRange> Divide(RankRange subtree, int fan_out);

  const Rank rank_;
  Rank parent_ = kNoRank;
  int depth_ = 0;
  RankRange subtree_;
  std::vector<RankRange> children_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TREE_TREE_TOPOLOGY_H_
