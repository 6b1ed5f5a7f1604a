#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/message/nonce.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/sim/cluster.h"

// What a Cluster checks of locks, and does wrong with them.
namespace tfring::sim {

// Between ranks that run a locked schedule nothing is said but that they are alive.
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
  if (!late && !alter && !shift) return;
  Frame decoded = *DecodeFrame(std::string_view(*frame).substr(0, frame->size() - kNonceBytes));
  LockMessage& lock = decoded.lock;
  if (late && lock.entered > 0) {
    --lock.entered;
  } else if (alter && lock.batches.size() > 1) {
    std::swap(lock.batches[0], lock.batches[1]);
  } else if (shift && lock.high > lock.entered) {
    ++lock.entered;
  } else {
    return;
  }
  sabotaged_ = true;
  *frame = EncodeFrame(decoded);
  AddNonce(options_.seed | 1, frame);
}

}  // namespace tfring::sim
