#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ROTATION_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ROTATION_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Translates schedules for a line into schedules for a ring with a gap. Such a ring is a line, too,
// but one that begins behind the gap and goes on with position 0 after the last position. The line
// algorithms number the members along the line; these numbers are called places here. So the
// schedule is made for places, and Apply then replaces places by positions. Members without a gap
// have places equal to their positions. A value type.
class LineRotation {
 public:
  explicit LineRotation(const std::vector<Rank>& members);

  int PlaceOf(int position) const { return (position - first_ + size_) % size_; }
  // A list by position, reordered by place.
  std::vector<int64_t> AlongLine(const std::vector<int64_t>& by_position) const;

  // Changes `schedule` from places to positions: its peers, and its ranges in the input
  // (`of_input`) or the output (`of_output`), if that consists of the `blocks` of all members (by
  // position), whose order changes. No range of the schedule lies in two blocks.
  void Apply(const std::vector<int64_t>& blocks, bool of_input, bool of_output,
             Schedule* schedule) const;

 private:
  int first_ = 0;  // position of place 0
  int size_ = 1;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_LINE_ROTATION_H_
