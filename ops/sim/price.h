#ifndef TFRING_OPS_SIM_PRICE_H_
#define TFRING_OPS_SIM_PRICE_H_

#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// What moving data costs, the same for all ranks. Every rank has one link that sends and receives
// at once, and one core that combines and copies.
struct LinkModel {
  Duration latency = 20'000;             // from the last byte sent to its arrival
  double bytes_per_second = 1e9;         // of a link, in each direction
  double reduce_bytes_per_second = 4e9;  // combining and copying
};

// When each rank ends, if all begin at 0. by_rank[p] is the schedule of position p. Pure. Ranks
// whose schedule cannot end (they do not fit together) get kNever.
std::vector<Duration> PriceSchedules(const std::vector<Schedule>& by_rank, const LinkModel& model);

}  // namespace tfring

#endif  // TFRING_OPS_SIM_PRICE_H_
