#include "ops/runtime/backend/algorithms/line_rotation.h"

#include <algorithm>
#include <numeric>

namespace tfring {

LineRotation::LineRotation(const std::vector<Rank>& members)
    : size_(static_cast<int>(members.size())) {
  for (int i = 1; i < size_; ++i) {
    if (members[i] != members[i - 1] + 1) first_ = i;
  }
}

std::vector<int64_t> LineRotation::AlongLine(const std::vector<int64_t>& by_position) const {
  std::vector<int64_t> by_place = by_position;
  std::rotate(by_place.begin(), by_place.begin() + first_, by_place.end());
  return by_place;
}

void LineRotation::Apply(const std::vector<int64_t>& blocks, bool of_input, bool of_output,
                         Schedule* schedule) const {
  if (first_ == 0) return;
  const auto middle = blocks.begin() + first_;
  const int64_t before = std::accumulate(blocks.begin(), middle, int64_t{0});
  const int64_t behind = std::accumulate(middle, blocks.end(), int64_t{0});
  auto move = [&](Range* range) {
    const bool listed = (range->space == Space::kInput && of_input) ||
                        (range->space == Space::kOutput && of_output);
    if (listed) range->offset += range->offset < behind ? before : -behind;
  };
  for (Step& step : schedule->steps) {
    if (IsRemote(step)) step.peer = (step.peer + first_) % size_;
    move(&step.src);
    move(&step.src2);
    move(&step.dst);
  }
}

}  // namespace tfring
