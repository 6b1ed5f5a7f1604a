#include "ops/runtime/backend/algorithms/select.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "ops/runtime/backend/algorithms/adasum.h"
#include "ops/runtime/backend/algorithms/allreduce.h"
#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/algorithms/member_order.h"
#include "ops/runtime/backend/algorithms/moves.h"
#include "ops/runtime/backend/algorithms/reduce.h"
#include "ops/runtime/backend/algorithms/reducescatter.h"
#include "ops/runtime/backend/schedule/buffer_map.h"
#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

using Blocks = std::vector<int64_t>;  // by member

int64_t Total(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
}

std::vector<int64_t> TensorBytes(const Collective& collective) {
  std::vector<int64_t> bytes;
  for (const TensorBuffer& buffer : collective.buffers) bytes.push_back(buffer.input_bytes);
  return bytes;
}

// Returns the blocks of all tensors, added up by member.
Blocks ByMember(const std::vector<Blocks>& by_tensor, size_t size) {
  Blocks sums(size, 0);
  for (const Blocks& blocks : by_tensor) {
    for (size_t m = 0; m < size; ++m) sums[m] += blocks[m];
  }
  return sums;
}

Schedule CopyOnly(int64_t bytes) {
  ScheduleBuilder builder("copy");
  if (bytes > 0) builder.Copy({Space::kInput, 0, bytes}, {Space::kOutput, 0, bytes}, true);
  return builder.Take();
}

Schedule SelectAllreduce(const ReduceShape& shape, const Config& config, const HostLayout& layout) {
  const auto options = AllreduceOptions(shape.size, shape.bytes(), config, layout);
  return ScheduleOf(options.front(), shape, layout);
}

Schedule SelectAllgather(const BlocksShape& shape, const Config& config) {
  const bool direct =
      Total(shape.block_bytes) <= config.tree_max_bytes && shape.size() <= kDirectMaxRanks;
  return direct ? DirectAllgather(shape) : RingAllgather(shape);
}

Schedule SelectBroadcast(const BroadcastShape& shape, const Config& config) {
  return shape.bytes <= config.tree_max_bytes ? TreeBroadcast(shape) : ChainBroadcast(shape);
}

Schedule SelectReducescatter(const ReducescatterShape& shape, const Config& config) {
  const bool small = Total(shape.block_bytes) <= config.tree_max_bytes;
  const bool direct = small || config.deterministic || shape.size() == 2;
  return direct ? DirectReducescatter(shape) : RingReducescatter(shape);
}

Schedule SelectReduce(const ReduceShape& shape, int root, const Config& config) {
  const int64_t bytes = shape.bytes();
  const int64_t direct_max = shape.size == 2 ? config.tree_max_bytes : config.direct_max_bytes;
  if (bytes <= direct_max && shape.size <= kDirectMaxRanks) return DirectReduce(shape, root);
  const bool tree = config.deterministic || bytes <= config.tree_max_bytes;
  return tree ? TreeReduce(shape, root) : ChainReduce(shape, root);
}

// For two or more members. `self`, `root` and `blocks` are by position or by place (see OrderOf).
Schedule SelectAmong(const Collective& collective, int self, int root, const Blocks& blocks,
                     const Config& config, const HostLayout& layout) {
  const size_t members = collective.members.size();
  const int size = static_cast<int>(members);
  const int64_t piece_bytes = std::max<int64_t>(config.piece_bytes, 1);
  const int64_t element = DataTypeSize(collective.dtype);
  const int64_t input_bytes = InputBytes(collective.buffers);
  switch (collective.kind) {
    case CollectiveKind::kAllreduce:
      if (collective.op == ReduceOp::kAdasum) {
        return AdasumAllreduce({self, size, TensorBytes(collective), element, piece_bytes});
      }
      return SelectAllreduce({self, size, input_bytes / element, element, piece_bytes}, config,
                             layout);
    case CollectiveKind::kReduce:
      return SelectReduce({self, size, input_bytes / element, element, piece_bytes}, root, config);
    case CollectiveKind::kReducescatter:
      return SelectReducescatter({self, blocks, element, piece_bytes}, config);
    case CollectiveKind::kAllgather:
      return SelectAllgather({self, blocks, piece_bytes}, config);
    case CollectiveKind::kBroadcast:
      return SelectBroadcast({self, size, root, OutputBytes(collective.buffers), piece_bytes},
                             config);
    case CollectiveKind::kGather:
      return DirectGather({self, blocks, piece_bytes, root});
    case CollectiveKind::kScatter:
      return DirectScatter({self, blocks, piece_bytes, root});
    case CollectiveKind::kAlltoall:
      return PairwiseAlltoall(
          {self, ByMember(collective.send_bytes, members), blocks, piece_bytes});
    case CollectiveKind::kSendRecv:
      return SendRecv(self, root, self == root ? input_bytes : OutputBytes(collective.buffers));
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
    case CollectiveKind::kAddProcessSet:
    case CollectiveKind::kRemoveProcessSet:
      break;
  }
  TFRING_CHECK(false) << CollectiveKindName(collective.kind) << " moves no data";
  return Schedule();
}

// Returns the order in which algorithms that send from member to member visit the members; none: by
// position. Sums in canonical order keep the order of the positions.
std::optional<MemberOrder> OrderOf(const Collective& collective, const Config& config,
                                   const HostLayout& layout) {
  if (layout.hosts() <= 1) return std::nullopt;
  const bool canonical =
      config.deterministic ||
      InputBytes(collective.buffers) <= std::max(config.direct_max_bytes, config.tree_max_bytes);
  switch (collective.kind) {
    case CollectiveKind::kAllgather:
      return MemberOrder::ByHost(layout);
    case CollectiveKind::kBroadcast:
      return MemberOrder::FromRoot(layout, collective.root);
    case CollectiveKind::kReducescatter:
      if (canonical) return std::nullopt;
      return MemberOrder::ByHost(layout);
    case CollectiveKind::kReduce:
      if (canonical) return std::nullopt;
      return MemberOrder::ToRoot(layout, collective.root);
    default:
      return std::nullopt;
  }
}

Schedule SelectByPlaces(const Collective& collective, const Config& config,
                        const HostLayout& layout) {
  const Blocks blocks = ByMember(collective.block_bytes, collective.members.size());
  const std::optional<MemberOrder> order = OrderOf(collective, config, layout);
  if (!order) {
    return SelectAmong(collective, collective.self, collective.root, blocks, config, layout);
  }
  Schedule schedule =
      SelectAmong(collective, order->PlaceOf(collective.self), order->PlaceOf(collective.root),
                  order->ByPlace(blocks), config, layout);
  const auto [input, output] = SidesOf(collective);
  order->Apply(blocks, input.blocks != nullptr, output.blocks != nullptr, &schedule);
  return schedule;
}

}  // namespace

Schedule SelectSchedule(const Collective& collective, const Config& config,
                        const HostLayout& layout) {
  // Rank 0 sends the plan when all members have called the barrier, so nothing is left to do.
  if (collective.kind == CollectiveKind::kBarrier) return ScheduleBuilder("barrier").Take();
  if (collective.members.size() == 1) return CopyOnly(OutputBytes(collective.buffers));
  return SelectByPlaces(collective, config, layout);
}

}  // namespace tfring
