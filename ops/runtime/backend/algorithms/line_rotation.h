#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ROTATION_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ROTATION_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// A ring of ranks with a gap in it is a line that begins behind the gap and goes on at position 0
// after the last one: a schedule for a line is made for places along it, and then told in
// positions. A value type; the identity for members without a gap.
class LineRotation {
 public:
  explicit LineRotation(const std::vector<Rank>& members);

  int PlaceOf(int position) const { return (position - first_ + size_) % size_; }
  // Lists by position as lists by place.
  std::vector<int64_t> AlongLine(const std::vector<int64_t>& by_position) const;

  // From places to positions. The spaces that consist of the blocks of all (`blocks` by position)
  // are listed by place before and by position after; no range is in two blocks.
  void Apply(const std::vector<int64_t>& blocks, bool of_input, bool of_output,
             Schedule* schedule) const;

 private:
  int first_ = 0;  // position of place 0
  int size_ = 1;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ROTATION_H_
