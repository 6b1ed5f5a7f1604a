#include "ops/runtime/backend/arena/arena_flows.h"

#include <algorithm>

#include "ops/runtime/backend/arena/arena_layout.h"

namespace tfring {
namespace {

using Flow = ArenaFlows::Flow;

// Inputs of an allreduce that every rank reads and adds up for itself.
constexpr int64_t kSlotsBytes = 512 << 10;
constexpr int64_t kArenaStagingBytes = kArenaDepth * kArenaBlockBytes;
// Where one rank gives and others take, a small round lets them work at the same time.
constexpr int64_t kRootedRoundBytes = 128 << 10;

// What each member has of lists [tensor][member], one member after the other.
std::vector<Flow> FlowsOfBlocks(const std::vector<std::vector<int64_t>>& blocks, size_t members) {
  std::vector<Flow> flows(members);
  int64_t offset = 0;
  for (size_t m = 0; m < members; ++m) {
    flows[m].offset = offset;
    for (const std::vector<int64_t>& of_tensor : blocks) flows[m].bytes += of_tensor[m];
    offset += flows[m].bytes;
  }
  return flows;
}

int64_t BytesOf(const std::vector<Flow>& flows) {
  return flows.empty() ? 0 : flows.back().offset + flows.back().bytes;
}

// All members have tensors of one size: who gives all of them to whom.
void FillWhole(const Collective& c, int64_t bytes, bool all_send, bool all_get, ArenaFlows* flows) {
  flows->total_bytes = bytes;
  const bool root = c.self == c.root;
  for (int m = 0; m < static_cast<int>(c.members.size()); ++m) {
    if ((all_send || root) && (all_get || m == c.root)) flows->sends[m].bytes = bytes;
    if ((all_get || root) && (all_send || m == c.root)) flows->gets[m].bytes = bytes;
  }
}

void Fill(const Collective& c, ArenaFlows* flows) {
  if (c.kind == CollectiveKind::kAllreduce) {
    FillWhole(c, InputBytes(c.buffers), true, true, flows);
  } else if (c.kind == CollectiveKind::kReduce) {
    FillWhole(c, InputBytes(c.buffers), true, false, flows);
  } else if (c.kind == CollectiveKind::kBroadcast) {
    FillWhole(c, OutputBytes(c.buffers), false, true, flows);
  } else {
    std::vector<Flow> blocks = FlowsOfBlocks(c.block_bytes, c.members.size());
    flows->total_bytes = BytesOf(blocks);
    const Flow own = {0, blocks[c.self].bytes};
    const std::vector<Flow> same(c.members.size(), own);
    flows->one_lane = c.kind == CollectiveKind::kAllgather;
    flows->sends = flows->one_lane ? same : blocks;
    flows->gets = flows->one_lane ? blocks : same;
  }
}

}  // namespace

int64_t ArenaFlows::Rounds(int64_t bytes) const {
  if (bytes <= slot_window) return bytes > 0 ? 1 : 0;
  return 1 + (bytes - slot_window + window - 1) / window;
}

int64_t ArenaFlows::BytesIn(int64_t bytes, int64_t round) const {
  return std::clamp<int64_t>(bytes - Begin(round), 0, round == 0 ? slot_window : window);
}

ArenaFlows ArenaFlowsOf(const Collective& collective) {
  const auto members = static_cast<int64_t>(collective.members.size());
  ArenaFlows flows;
  flows.sends.resize(collective.members.size());
  flows.gets.resize(collective.members.size());
  flows.adds = Traits(collective.kind).reduces;
  Fill(collective, &flows);
  const int64_t lanes = flows.one_lane ? 1 : members - 1;
  const bool all_read_all = collective.kind == CollectiveKind::kAllreduce;
  const int64_t slot =
      all_read_all ? std::min(kArenaSlotBytes, kSlotsBytes / members) : kArenaSlotBytes;
  flows.header_window = kArenaPayloadBytes / lanes / 8 * 8;
  flows.slot_window = slot / lanes / kArenaLine * kArenaLine;
  const bool rooted = Traits(collective.kind).has_root();
  flows.round_bytes = rooted ? kRootedRoundBytes : kArenaBlockBytes;
  flows.depth = static_cast<int>(kArenaStagingBytes / flows.round_bytes);
  flows.window = flows.round_bytes / lanes / kArenaLine * kArenaLine;
  return flows;
}

}  // namespace tfring
