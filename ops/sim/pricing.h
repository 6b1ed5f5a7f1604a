#ifndef TFRING_OPS_SIM_PRICING_H_
#define TFRING_OPS_SIM_PRICING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/sim/price.h"

namespace tfring::sim {

// What it costs to move a plan's data: builds the schedules that the CPU backend would run on every
// member and plays them on a model of the links. Remembers what it has priced. One thread.
class Pricing {
 public:
  // Until the last of `members` ranks ends, if each brings `bytes` (a multiple of 4) and all begin
  // together. kNever if the schedules do not fit together: a mistake in an algorithm.
  Duration Price(const Plan& plan, size_t members, int64_t bytes);

 private:
  LinkModel links_;
  std::map<std::tuple<CollectiveKind, ReduceOp, size_t, int64_t>, Duration> known_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_PRICING_H_
