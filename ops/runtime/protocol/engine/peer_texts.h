#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PEER_TEXTS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PEER_TEXTS_H_

#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/text.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/engine/peers.h"

namespace tfring {

// The errors that name a rank which was lost or has left. Part of the engine.
class PeerTexts {
 public:
  // `hosts` has host names by rank, or nothing.
  PeerTexts(Rank rank, std::vector<std::string> hosts, const Peers& peers);

  std::string Name(Rank peer) const { return RankName(peer, hosts_); }

  // Unavailable.
  Status Lost(Rank peer, const std::string& reason) const;
  // Cancelled. `what` was running, unless it is empty.
  Status Left(Rank peer, const std::string& what = "") const;

  // "rank 2 (host h) ended with an exception: ValueError: bad"; "" without an exception.
  std::string Ended(Rank peer) const { return Ended(peer, peers_.departure_error(peer)); }
  std::string Ended(Rank peer, const std::string& exception) const;

 private:
  const Rank rank_;
  const std::vector<std::string> hosts_;
  const Peers& peers_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_PEER_TEXTS_H_
