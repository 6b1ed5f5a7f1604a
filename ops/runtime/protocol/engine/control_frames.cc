#include "ops/runtime/protocol/engine/control_frames.h"

namespace tfring {

void ControlFrames::Send(Rank to, std::string bytes) {
  if (to == rank_ || peers_->gone(to)) return;
  peers_->Sent(to, now_);
  AddNonce(nonce_, &bytes);
  frames_.emplace_back(to, std::move(bytes));
}

void ControlFrames::Broadcast(const Frame& frame) {
  const std::string bytes = EncodeFrame(frame);
  for (Rank peer : peers_->control_peers()) Send(peer, bytes);
}

}  // namespace tfring
