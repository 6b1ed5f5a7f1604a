#ifndef TFRING_OPS_SIM_PRICING_H_
#define TFRING_OPS_SIM_PRICING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/protocol/message/plan.h"

namespace tfring::sim {

// The cost of moving data, the same for all ranks. Each rank has one link, which sends and receives
// at the same time, and one core that reduces and copies.
struct LinkModel {
  Duration latency = 20'000;             // from the last byte sent to its arrival
  double bytes_per_second = 1e9;         // of a link, in each direction
  double reduce_bytes_per_second = 4e9;  // of reducing and copying
};

// Returns when each rank ends its schedule if all begin at time 0. by_rank[p] is the schedule of
// position p. Pure. kNever for ranks whose schedule cannot end because the schedules do not match.
std::vector<Duration> PriceSchedules(const std::vector<Schedule>& by_rank, const LinkModel& model);

// Returns the collective of a plan as the member at position `self` sees it, if each member
// contributes `bytes`. It has no memory, because algorithms need only sizes.
Collective DescribeCollective(const Plan& plan, size_t members, size_t self, int64_t bytes);

// Returns how long the data of a plan takes to move: makes each member's schedule of the CPU
// backend, prices the schedules and caches the result. Used by one thread.
class PlanPrices {
 public:
  // Returns the time until the last of `members` ranks ends, if each contributes `bytes` (a
  // multiple of 4). kNever if the schedules do not match, which is an error in an algorithm.
  Duration Price(const Plan& plan, size_t members, int64_t bytes);

 private:
  LinkModel links_;
  std::map<std::tuple<CollectiveKind, ReduceOp, size_t, int64_t>, Duration> known_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_PRICING_H_
