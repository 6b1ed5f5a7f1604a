#include "ops/runtime/backend/algorithms/member_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfring {
namespace {

// Returns the begins of blocks that lie one after another, and the end of the last one.
std::vector<int64_t> Begins(const std::vector<int64_t>& blocks) {
  std::vector<int64_t> begins(blocks.size() + 1, 0);
  std::partial_sum(blocks.begin(), blocks.end(), begins.begin() + 1);
  return begins;
}

}  // namespace

MemberOrder::MemberOrder(std::vector<int> positions)
    : positions_(std::move(positions)), places_(positions_.size()) {
  for (size_t place = 0; place < positions_.size(); ++place) {
    places_[positions_[place]] = static_cast<int>(place);
  }
}

MemberOrder MemberOrder::ByHost(const HostLayout& layout) { return MemberOrder(layout.ByHost()); }

MemberOrder MemberOrder::FromRoot(const HostLayout& layout, int root) {
  std::vector<int> positions = {root};
  for (int i = 0; i < layout.hosts(); ++i) {
    for (int position : layout.PositionsOn((layout.HostOf(root) + i) % layout.hosts())) {
      if (position != root) positions.push_back(position);
    }
  }
  return MemberOrder(std::move(positions));
}

MemberOrder MemberOrder::ToRoot(const HostLayout& layout, int root) {
  std::vector<int> positions;
  for (int i = 1; i <= layout.hosts(); ++i) {
    for (int position : layout.PositionsOn((layout.HostOf(root) + i) % layout.hosts())) {
      if (position != root) positions.push_back(position);
    }
  }
  positions.push_back(root);
  return MemberOrder(std::move(positions));
}

std::vector<int64_t> MemberOrder::ByPlace(const std::vector<int64_t>& by_position) const {
  std::vector<int64_t> by_place;
  for (int position : positions_) by_place.push_back(by_position[position]);
  return by_place;
}

void MemberOrder::Apply(const std::vector<int64_t>& blocks, bool of_input, bool of_output,
                        Schedule* schedule) const {
  if (std::is_sorted(positions_.begin(), positions_.end())) return;
  const std::vector<int64_t> begins = Begins(blocks);
  const std::vector<int64_t> begins_by_place =
      of_input || of_output ? Begins(ByPlace(blocks)) : std::vector<int64_t>();
  auto move = [&](Range* range) {
    const bool listed = (range->space == Space::kInput && of_input) ||
                        (range->space == Space::kOutput && of_output);
    if (!listed || range->bytes == 0) return;
    // The last block that begins at or before this offset: any earlier block there is empty.
    const auto behind =
        std::upper_bound(begins_by_place.begin(), begins_by_place.end() - 1, range->offset);
    const auto place = static_cast<size_t>(behind - begins_by_place.begin()) - 1;
    range->offset += begins[positions_[place]] - begins_by_place[place];
  };
  for (Step& step : schedule->steps) {
    if (IsRemote(step)) step.peer = positions_[step.peer];
    move(&step.src);
    move(&step.src2);
    move(&step.dst);
  }
}

}  // namespace tfring
