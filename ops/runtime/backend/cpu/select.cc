#include "ops/runtime/backend/cpu/select.h"

#include <algorithm>
#include <string>

#include "ops/runtime/backend/cpu/allgather.h"
#include "ops/runtime/backend/cpu/broadcast.h"
#include "ops/runtime/backend/cpu/direct_allreduce.h"
#include "ops/runtime/backend/cpu/direct_reduce_scatter.h"
#include "ops/runtime/backend/cpu/line_allreduce.h"
#include "ops/runtime/backend/cpu/ring_allreduce.h"
#include "ops/runtime/backend/cpu/tree_allreduce.h"

namespace tfring {
namespace {

// Beyond this, N^2 messages of a direct exchange cost more than the hops of a tree.
constexpr int kDirectMaxRanks = 16;

int64_t TotalOutputBytes(const Collective& collective) {
  int64_t bytes = 0;
  for (const TensorBuffer& buffer : collective.buffers) bytes += buffer.output_bytes;
  return bytes;
}

Schedule CopyOnly(int64_t bytes) {
  ScheduleBuilder builder("copy");
  if (bytes > 0) builder.Copy({Space::kInput, 0, bytes}, {Space::kOutput, 0, bytes}, true);
  return builder.Take();
}

Schedule SelectAllreduce(const ReduceShape& shape, const Config& config,
                         Connectivity connectivity) {
  const int64_t bytes = shape.bytes();
  if (connectivity != Connectivity::kFull) {
    const bool ring = connectivity == Connectivity::kRing && !config.deterministic;
    return ring ? RingAllreduce(shape) : LineAllreduce(shape);
  }
  // Two ranks that exchange everything send no more than in a ring, in one hop instead of two.
  const int64_t direct_max = shape.size == 2
                                 ? std::max(config.direct_max_bytes, config.tree_max_bytes)
                                 : config.direct_max_bytes;
  if (bytes <= direct_max && shape.size <= kDirectMaxRanks) return DirectAllreduce(shape);
  if (bytes <= config.tree_max_bytes) return TreeAllreduce(shape);
  return config.deterministic ? DirectReduceScatterAllreduce(shape) : RingAllreduce(shape);
}

Schedule SelectAllgather(const GatherShape& shape, const Config& config,
                         Connectivity connectivity) {
  if (connectivity == Connectivity::kLine) return LineAllgather(shape);
  int64_t bytes = 0;
  for (int64_t block : shape.block_bytes) bytes += block;
  const bool small = bytes <= config.tree_max_bytes && shape.size() <= kDirectMaxRanks;
  const bool direct = connectivity == Connectivity::kFull && small;
  return direct ? DirectAllgather(shape) : RingAllgather(shape);
}

Schedule SelectBroadcast(const BroadcastShape& shape, const Config& config,
                         Connectivity connectivity) {
  if (connectivity == Connectivity::kLine) return LineBroadcast(shape);
  const bool tree = connectivity == Connectivity::kFull && shape.bytes <= config.tree_max_bytes;
  return tree ? TreeBroadcast(shape) : ChainBroadcast(shape);
}

}  // namespace

Connectivity ConnectivityOf(const std::vector<Rank>& members, int world_size, bool full_mesh) {
  if (full_mesh || members.size() <= 1) return Connectivity::kFull;
  if (static_cast<int>(members.size()) == world_size) return Connectivity::kRing;
  if (members.size() == 2 && members[0] == 0 && members[1] == world_size - 1) {
    return Connectivity::kFull;
  }
  for (size_t i = 1; i < members.size(); ++i) {
    if (members[i] != members[i - 1] + 1) return Connectivity::kNone;
  }
  return members.size() == 2 ? Connectivity::kFull : Connectivity::kLine;
}

Result<Schedule> SelectSchedule(const Collective& collective, const Config& config,
                                Connectivity connectivity) {
  const int size = static_cast<int>(collective.members.size());
  const int self = collective.self;
  const int64_t bytes = TotalOutputBytes(collective);
  const int64_t piece_bytes = std::max<int64_t>(config.piece_bytes, 1);
  // That the plan came proves that all members have arrived: nothing is left to do.
  if (collective.kind == CollectiveKind::kBarrier) return Schedule{"barrier", 0, {}};
  if (size == 1) return CopyOnly(bytes);
  if (connectivity == Connectivity::kNone) {
    return Unimplemented("ranks " + RanksString(collective.members) +
                         " are not connected with each other: beyond 64 ranks only process sets "
                         "of consecutive ranks, and the global one, can run collectives");
  }
  switch (collective.kind) {
    case CollectiveKind::kAllreduce: {
      const int64_t element = DataTypeSize(collective.dtype);
      return SelectAllreduce({self, size, bytes / element, element, piece_bytes}, config,
                             connectivity);
    }
    case CollectiveKind::kAllgather: {
      GatherShape shape{self, std::vector<int64_t>(size, 0), piece_bytes};
      for (const std::vector<int64_t>& blocks : collective.block_bytes) {
        for (int m = 0; m < size; ++m) shape.block_bytes[m] += blocks[m];
      }
      return SelectAllgather(shape, config, connectivity);
    }
    case CollectiveKind::kBroadcast:
      return SelectBroadcast({self, size, collective.root, bytes, piece_bytes}, config,
                             connectivity);
    case CollectiveKind::kBarrier:
      break;
  }
  return Internal("unknown kind of collective");
}

}  // namespace tfring
