#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_MEMBER_ORDER_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_MEMBER_ORDER_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// The members in another order than that of their positions. Algorithms along a line, a ring or a
// chain send from one number to the next one, so their schedules are made for numbers in this
// order, which are called places; Apply then replaces places by positions. A value type.
class MemberOrder {
 public:
  // Host by host, so that a ring enters each host once.
  static MemberOrder ByHost(const HostLayout& layout);
  // The same, beginning with `root`, and ending with it: for chains, which are rings with a gap.
  static MemberOrder FromRoot(const HostLayout& layout, int root);
  static MemberOrder ToRoot(const HostLayout& layout, int root);

  int PlaceOf(int position) const { return places_[position]; }
  // A list by position, reordered by place.
  std::vector<int64_t> ByPlace(const std::vector<int64_t>& by_position) const;

  // Changes `schedule` from places to positions: its peers, and its ranges in the input
  // (`of_input`) or the output (`of_output`), if that consists of the `blocks` of all members (by
  // position), whose order changes. No range of the schedule lies in two blocks.
  void Apply(const std::vector<int64_t>& blocks, bool of_input, bool of_output,
             Schedule* schedule) const;

 private:
  explicit MemberOrder(std::vector<int> positions);

  std::vector<int> positions_;  // by place
  std::vector<int> places_;     // by position
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_MEMBER_ORDER_H_
