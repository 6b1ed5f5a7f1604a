#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/message/nonce.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/sim/cluster.h"

// The checks of each engine step, and the planted errors in locks.
namespace tfring::sim {

// As EngineEffects::awaits_end promises.
bool Cluster::NothingFollows(Rank rank, const EngineEvents& events) const {
  const Node& node = nodes_[rank];
  if (node.awaits_end || node.leaving || clock_.Now() >= node.engine->next_deadline()) return false;
  return std::all_of(events.completions.begin(), events.completions.end(), Succeeded) &&
         events.control.empty() && events.withdrawals.empty() && events.submissions.empty() &&
         !events.shutdown && !events.unlock;
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

void Cluster::SabotageLock(Rank rank, Rank to, std::string* frame) {
  const auto type = static_cast<FrameType>((*frame)[0]);
  const bool last = to == options_.ranks - 1 || rank == options_.ranks - 1;
  if (sabotaged_ || !last) return;
  const Sabotage sabotage = options_.sabotage;
  const bool late = sabotage == Sabotage::kEnterLate && type == FrameType::kFrozen;
  const bool alter = sabotage == Sabotage::kAlterLock && type == FrameType::kLock;
  const bool shift = sabotage == Sabotage::kShiftUnlock && type == FrameType::kUnlock;
  const bool blame = sabotage == Sabotage::kBlameOther && type == FrameType::kUnlock;
  if (!late && !alter && !shift && !blame) return;
  Frame decoded = *DecodeFrame(std::string_view(*frame).substr(0, frame->size() - kNonceBytes));
  LockMessage& lock = decoded.lock;
  if (late && lock.entered > 0) {
    --lock.entered;
  } else if (alter && lock.batches.size() > 1) {
    std::swap(lock.batches[0], lock.batches[1]);
  } else if (shift && lock.high > lock.entered) {
    ++lock.entered;
  } else if (blame) {
    lock.rank = (lock.rank + 1) % options_.ranks;
  } else {
    return;
  }
  sabotaged_ = true;
  *frame = EncodeFrame(decoded);
  AddNonce(options_.seed | 1, frame);
}

void Cluster::SendFrame(Rank rank, Rank to, std::string frame) {
  SabotageLock(rank, to, &frame);
  network_.Send(rank, to, std::move(frame));
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
