#include "ops/runtime/backend/algorithms/select.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "ops/runtime/backend/algorithms/adasum.h"
#include "ops/runtime/backend/algorithms/allgather.h"
#include "ops/runtime/backend/algorithms/allreduce.h"
#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/algorithms/alltoall.h"
#include "ops/runtime/backend/algorithms/broadcast.h"
#include "ops/runtime/backend/algorithms/gather_scatter.h"
#include "ops/runtime/backend/algorithms/member_order.h"
#include "ops/runtime/backend/algorithms/narrow_wire.h"
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

// The blocks of all tensors added up.
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

Schedule SelectAllreduce(const ReduceShape& shape, const Config& config, Connectivity connectivity,
                         const HostLayout& layout, DataType wire) {
  if (connectivity != Connectivity::kFull) {
    const bool ring = connectivity == Connectivity::kRing && !config.deterministic;
    return ring ? RingAllreduce(shape) : LineAllreduce(shape);
  }
  const auto options = AllreduceOptions(shape.size, shape.bytes(), config, layout, wire);
  return ScheduleOf(options.front(), shape, layout);
}

Schedule SelectAllgather(const AllgatherShape& shape, const Config& config,
                         Connectivity connectivity) {
  if (connectivity == Connectivity::kLine) return LineAllgather(shape);
  const bool small =
      Total(shape.block_bytes) <= config.tree_max_bytes && shape.size() <= kDirectMaxRanks;
  const bool direct = connectivity == Connectivity::kFull && small;
  return direct ? DirectAllgather(shape) : RingAllgather(shape);
}

Schedule SelectBroadcast(const BroadcastShape& shape, const Config& config,
                         Connectivity connectivity) {
  if (connectivity == Connectivity::kLine) return LineBroadcast(shape);
  const bool tree = connectivity == Connectivity::kFull && shape.bytes <= config.tree_max_bytes;
  return tree ? TreeBroadcast(shape) : ChainBroadcast(shape);
}

Schedule SelectReducescatter(const ReducescatterShape& shape, const Config& config,
                             Connectivity connectivity) {
  if (connectivity == Connectivity::kLine) return LineReducescatter(shape);
  const bool small = Total(shape.block_bytes) <= config.tree_max_bytes;
  const bool direct =
      connectivity == Connectivity::kFull && (small || config.deterministic || shape.size() == 2);
  return direct ? DirectReducescatter(shape) : RingReducescatter(shape);
}

Schedule SelectReduce(const ReduceShape& shape, int root, const Config& config,
                      Connectivity connectivity) {
  const int64_t bytes = shape.bytes();
  if (connectivity == Connectivity::kLine) return LineReduce(shape, root);
  if (connectivity == Connectivity::kRing) return ChainReduce(shape, root);
  const int64_t direct_max = shape.size == 2 ? config.tree_max_bytes : config.direct_max_bytes;
  if (bytes <= direct_max && shape.size <= kDirectMaxRanks) return DirectReduce(shape, root);
  if (bytes <= config.tree_max_bytes) return TreeReduce(shape, root);
  return config.deterministic ? TwoPhaseReduce(shape, root) : ChainReduce(shape, root);
}

Schedule SelectRooted(CollectiveKind kind, const RootedShape& shape, Connectivity connectivity) {
  const bool full = connectivity == Connectivity::kFull;
  if (kind == CollectiveKind::kGather) return full ? DirectGather(shape) : LineGather(shape);
  return full ? DirectScatter(shape) : LineScatter(shape);
}

Status NotConnected(const Collective& collective, const std::string& what) {
  return Unimplemented("ranks " + RanksString(collective.members) + " are not connected " + what);
}

// For two or more members that are connected well enough. `self`, `root` and `blocks` are positions
// or places (see OrderOf).
Schedule SelectAmong(const Collective& collective, int self, int root, const Blocks& blocks,
                     const Config& config, Connectivity connectivity, const HostLayout& layout) {
  const size_t members = collective.members.size();
  const int size = static_cast<int>(members);
  const int64_t piece_bytes = std::max<int64_t>(
      collective.piece_bytes > 0 ? collective.piece_bytes : config.piece_bytes, 1);
  const int64_t element = DataTypeSize(collective.dtype);
  const int64_t input_bytes = InputBytes(collective.buffers);
  const DataType wire = WireOf(collective, config, layout);
  switch (collective.kind) {
    case CollectiveKind::kAllreduce:
      if (collective.op == ReduceOp::kAdasum) {
        return AdasumAllreduce({self, size, TensorBytes(collective), element, piece_bytes});
      }
      return SelectAllreduce(
          {self, size, input_bytes / element, element, piece_bytes, wire != DataType::kFloat32},
          config, connectivity, layout, wire);
    case CollectiveKind::kReduce:
      return SelectReduce({self, size, input_bytes / element, element, piece_bytes}, root, config,
                          connectivity);
    case CollectiveKind::kReducescatter:
      return SelectReducescatter({self, blocks, element, piece_bytes}, config, connectivity);
    case CollectiveKind::kAllgather:
      return SelectAllgather({self, blocks, piece_bytes}, config, connectivity);
    case CollectiveKind::kBroadcast:
      return SelectBroadcast({self, size, root, OutputBytes(collective.buffers), piece_bytes},
                             config, connectivity);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return SelectRooted(collective.kind, {self, root, blocks, piece_bytes}, connectivity);
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

// In which order algorithms that send from one member to the next one go through the members; none:
// by position. Sums that are made in canonical order keep that of the positions.
std::optional<MemberOrder> OrderOf(const Collective& collective, const Config& config,
                                   Connectivity connectivity, const HostLayout& layout) {
  if (connectivity == Connectivity::kLine) return MemberOrder::AlongLine(collective.members);
  if (connectivity != Connectivity::kFull || layout.hosts() <= 1) return std::nullopt;
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
                        Connectivity connectivity, const HostLayout& layout) {
  const Blocks blocks = ByMember(collective.block_bytes, collective.members.size());
  const std::optional<MemberOrder> order = OrderOf(collective, config, connectivity, layout);
  if (!order) {
    return SelectAmong(collective, collective.self, collective.root, blocks, config, connectivity,
                       layout);
  }
  Schedule schedule =
      SelectAmong(collective, order->PlaceOf(collective.self), order->PlaceOf(collective.root),
                  order->ByPlace(blocks), config, connectivity, layout);
  const auto [input, output] = SidesOf(collective);
  order->Apply(blocks, input.blocks != nullptr, output.blocks != nullptr, &schedule);
  return schedule;
}

Schedule SelectOfSeveral(const Collective& collective, const Config& config,
                         Connectivity connectivity, const HostLayout& layout) {
  Schedule schedule = SelectByPlaces(collective, config, connectivity, layout);
  const DataType wire = WireOf(collective, config, layout);
  if (wire != DataType::kFloat32) {
    NarrowBetweenHosts(layout, collective.self, wire, &schedule);
  }
  return schedule;
}

}  // namespace

Connectivity ConnectivityOf(const std::vector<Rank>& members, int world_size, bool full_mesh) {
  if (full_mesh || members.size() <= 1) return Connectivity::kFull;
  if (static_cast<int>(members.size()) == world_size) return Connectivity::kRing;
  int gaps = 0;
  for (size_t i = 1; i < members.size(); ++i) gaps += members[i] != members[i - 1] + 1 ? 1 : 0;
  // The last rank of the world is a neighbour of the first.
  const bool around = members.front() == 0 && members.back() == world_size - 1;
  if (gaps > (around ? 1 : 0)) return Connectivity::kNone;
  return members.size() == 2 ? Connectivity::kFull : Connectivity::kLine;
}

Result<Schedule> SelectSchedule(const Collective& collective, const Config& config,
                                Connectivity connectivity, const HostLayout& layout) {
  // Rank 0 sends the plan when all members have called the barrier: nothing is left to do.
  if (collective.kind == CollectiveKind::kBarrier) return ScheduleBuilder("barrier").Take();
  if (collective.members.size() == 1) return CopyOnly(OutputBytes(collective.buffers));
  if (connectivity == Connectivity::kNone) {
    const bool pair = collective.kind == CollectiveKind::kSendRecv;
    return NotConnected(collective,
                        pair ? "with each other: beyond 64 ranks only neighbours can send to each "
                               "other; pass it on from rank to rank, or use a broadcast"
                             : "with each other: beyond 64 ranks only ranks that follow one "
                               "another, the last one being followed by rank 0, can run "
                               "collectives; if ranks have joined, let the others join as well, "
                               "or only ranks beside each other join early");
  }
  const bool adasum = Traits(collective.kind).reduces && collective.op == ReduceOp::kAdasum;
  if (connectivity != Connectivity::kFull &&
      (adasum || collective.kind == CollectiveKind::kAlltoall)) {
    return NotConnected(collective,
                        std::string("every one with every other, which ") +
                            (adasum ? "Adasum" : "alltoall") +
                            " needs: beyond 64 ranks only process sets of two neighbours can run "
                            "it");
  }
  return SelectOfSeveral(collective, config, connectivity, layout);
}

}  // namespace tfring
