#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TREE_RANK_SET_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TREE_RANK_SET_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/base/wire_io.h"

namespace tfring {

// The ranks from `begin` on, before `end`.
struct RankRange {
  Rank begin = 0;
  Rank end = 0;
};
inline bool operator==(const RankRange& a, const RankRange& b) {
  return a.begin == b.begin && a.end == b.end;
}

// A set of ranks as ranges that ascend and do not touch: all ranks of a job, or of a subtree, take
// as much memory and as many bytes of a message as one rank. A value type.
class RankSet {
 public:
  RankSet() = default;
  explicit RankSet(Rank rank) : RankSet(RankRange{rank, rank + 1}) {}
  explicit RankSet(RankRange range);

  void Add(const RankSet& other);

  bool empty() const { return ranges_.empty(); }
  int64_t size() const;
  bool Intersects(const RankSet& other) const;
  bool Contains(Rank rank) const;
  RankSet In(RankRange range) const;  // those of the range
  const std::vector<RankRange>& ranges() const { return ranges_; }

  // As a list of ranges; a set that is all of `whole` takes one byte.
  void Write(RankRange whole, WireWriter* out) const;
  // Fails `in` for what Write does not write: a set that is empty or not within `whole`.
  static RankSet Read(RankRange whole, WireReader* in);

 private:
  std::vector<RankRange> ranges_;
};

inline bool operator==(const RankSet& a, const RankSet& b) { return a.ranges() == b.ranges(); }

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TREE_RANK_SET_H_
