#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_CONTROL_FRAMES_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_CONTROL_FRAMES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/engine/peers.h"
#include "ops/runtime/protocol/message/wire.h"

namespace tfring {

// The control frames of one generation: marks those that this rank sends with the nonce of the
// generation, and drops those to ranks that are gone. Part of the engine.
class ControlFrames {
 public:
  ControlFrames(Rank rank, uint64_t nonce, Peers* peers)
      : rank_(rank), nonce_(nonce), peers_(peers) {}

  void SetTime(TimePoint now) { now_ = now; }

  // As TakeNonce.
  Status Open(std::string_view* frame) const { return TakeNonce(nonce_, frame); }

  // `bytes` is an encoded frame.
  void Send(Rank to, std::string bytes) {
    if (to == rank_ || peers_->gone(to)) return;
    peers_->Sent(to, now_);
    AddNonce(nonce_, &bytes);
    frames_.emplace_back(to, std::move(bytes));
  }
  void Send(Rank to, const Frame& frame) { Send(to, EncodeFrame(frame)); }
  // To all control peers.
  void Broadcast(const Frame& frame) {
    const std::string bytes = EncodeFrame(frame);
    for (const Rank peer : peers_->control_peers()) Send(peer, bytes);
  }

  // Hands over the frames since the last call, in order.
  std::vector<std::pair<Rank, std::string>> Take() { return std::exchange(frames_, {}); }

 private:
  const Rank rank_;
  const uint64_t nonce_;
  Peers* const peers_;
  TimePoint now_ = 0;
  std::vector<std::pair<Rank, std::string>> frames_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_CONTROL_FRAMES_H_
