#include "ops/sim/pricing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/select.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring::sim {
namespace {

// One rank's view of the collective. Schedules are pure: they need sizes, not memory.
Collective Describe(const Plan& plan, size_t members, size_t self, int64_t bytes) {
  Collective collective;
  collective.kind = plan.kind;
  collective.dtype = DataType::kFloat32;
  collective.op = plan.op;
  collective.self = static_cast<int>(self);
  for (size_t m = 0; m < members; ++m) collective.members.push_back(static_cast<Rank>(m));
  if (plan.kind == CollectiveKind::kBarrier) return collective;
  TensorBuffer buffer;
  buffer.input_bytes = bytes;
  buffer.output_bytes = bytes;
  const auto all = bytes * static_cast<int64_t>(members);
  const bool root = self == 0;
  switch (plan.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      buffer.output_bytes = plan.kind == CollectiveKind::kAllgather || root ? all : 0;
      collective.block_bytes.emplace_back(members, bytes);
      break;
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kAlltoall:
      buffer.input_bytes = all;
      buffer.output_bytes = plan.kind == CollectiveKind::kAlltoall ? all : bytes;
      collective.block_bytes.emplace_back(members, bytes);
      collective.send_bytes.emplace_back(members, bytes);
      break;
    case CollectiveKind::kScatter:
      buffer.input_bytes = root ? all : 0;
      collective.block_bytes.emplace_back(members, bytes);
      break;
    case CollectiveKind::kReduce:
      buffer.output_bytes = root ? bytes : 0;
      break;
    case CollectiveKind::kSendRecv:
      (root ? buffer.output_bytes : buffer.input_bytes) = 0;
      break;
    default:
      break;
  }
  collective.buffers.push_back(buffer);
  return collective;
}

}  // namespace

Duration Pricing::Price(const Plan& plan, size_t members, int64_t bytes) {
  const auto key = std::make_tuple(plan.kind, plan.op, members, bytes);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  std::vector<Schedule> by_rank;
  for (size_t self = 0; self < members; ++self) {
    Result<Schedule> schedule =
        SelectSchedule(Describe(plan, members, self, bytes), Config(), Connectivity::kFull);
    if (!schedule.ok()) return kNever;
    by_rank.push_back(std::move(*schedule));
  }
  Duration last = 0;
  for (Duration end : PriceSchedules(by_rank, links_)) last = std::max(last, end);
  known_.emplace(key, last);
  return last;
}

}  // namespace tfring::sim
