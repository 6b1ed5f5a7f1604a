#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/sim/cluster.h"

// The checks of each engine step.
namespace tfring::sim {

// As EngineEffects::awaits_end promises.
bool Cluster::NothingFollows(Rank rank, const EngineEvents& events) const {
  const Node& node = nodes_[rank];
  if (node.awaits_end || node.leaving || clock_.Now() >= node.engine->next_deadline()) return false;
  return std::all_of(events.completions.begin(), events.completions.end(), Succeeded) &&
         events.control.empty() && events.withdrawals.empty() && events.submissions.empty() &&
         !events.shutdown;
}

// Ranks that run a locked schedule exchange only heartbeats and faults.
void Cluster::CheckFrames(Rank rank, bool locked, const EngineEffects& effects) {
  for (const auto& [to, frame] : effects.frames) {
    const auto type = static_cast<FrameType>(frame[0]);
    if (type == FrameType::kLock && to == 1) ++report_.locks;
    if (locked && type != FrameType::kHeartbeat && type != FrameType::kFault) {
      checker_.Fail("rank " + std::to_string(rank) + " sends a frame of type " +
                    std::to_string(frame[0]) + " in a locked schedule");
    }
  }
}

// A call may be cancelled because of the rank that left only if it needs that rank, or if a plan
// broke in the middle.
void Cluster::CheckCancelIsNeeded(Rank rank, CallId id, const Status& status) {
  if (status.code() != StatusCode::kCancelled || nodes_[rank].leaving || faulty_rank_ == 0) return;
  const ProcessSetId set = checker_.call(rank, id).request.process_set;
  const bool needed =
      set == kGlobalProcessSet ||
      std::any_of(workload_.sets.begin(), workload_.sets.end(), [&](const auto& item) {
        return item.first == set &&
               std::binary_search(item.second.begin(), item.second.end(), faulty_rank_);
      });
  if (needed || data_plane_.broken() > 0) return;
  checker_.Fail("rank " + std::to_string(rank) + ", call " + std::to_string(id) +
                " was cancelled, but does not need rank " + std::to_string(faulty_rank_));
}

}  // namespace tfring::sim
