#include "ops/runtime/protocol/engine/kept_events.h"

#include <algorithm>
#include <utility>

namespace tfring {

bool KeptEvents::Keeps(FrameType type) {
  return type == FrameType::kRequests || type == FrameType::kWithdraw ||
         type == FrameType::kGoodbye;
}

void KeptEvents::Add(const ControlEvent& frame, FrameType type, bool early) {
  events_.push_back({frame, type, early});
}

void KeptEvents::AddEnd(const ControlEvent& end) {
  events_.push_back({end, FrameType::kHeartbeat, false});
}

bool KeptEvents::HasGoodbye(Rank peer) const {
  return std::any_of(events_.begin(), events_.end(), [peer](const Kept& kept) {
    return kept.event.peer == peer && kept.type == FrameType::kGoodbye;
  });
}

std::vector<ControlEvent> KeptEvents::Take(const LockCoordinator* ranks) {
  std::vector<ControlEvent> taken;
  for (Kept& kept : std::exchange(events_, {})) {
    const bool dropped = kept.early && ranks != nullptr && !ranks->declined(kept.event.peer) &&
                         kept.type == FrameType::kRequests;
    if (!dropped) taken.push_back(std::move(kept.event));
  }
  return taken;
}

}  // namespace tfring
