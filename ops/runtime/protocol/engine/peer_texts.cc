#include "ops/runtime/protocol/engine/peer_texts.h"

#include <utility>

#include "ops/runtime/protocol/message/text.h"

// tfring/observe/explain/ends.py reads out of these texts which rank is to blame.
namespace tfring {

PeerTexts::PeerTexts(Rank rank, std::vector<std::string> hosts, const Peers& peers)
    : rank_(rank), hosts_(std::move(hosts)), peers_(peers) {}

Status PeerTexts::Lost(Rank peer, const std::string& reason) const {
  return Unavailable(Name(peer) + " was lost: " + reason + ". See the log of that rank; " +
                     kWhatToDo);
}

Status PeerTexts::Left(Rank peer, const std::string& what) const {
  std::string text = Name(peer) + " has shut down";
  std::string error = peer == rank_ ? "" : Ended(peer);
  // Rank 0 often leaves because another rank did: name that one.
  const Rank first = peers_.first_departed();
  if (peer == 0 && rank_ != 0 && first != kNoRank && first != 0) {
    error = Ended(first);
    text += ", after " + (error.empty() ? Name(first) + " had" : error);
  } else if (!error.empty()) {
    text = error;
  }
  if (!what.empty()) text += (error.empty() ? " while " : ", while ") + what + " was running";
  return Cancelled(text + (error.empty() ? ": no" : ". No") +
                   " collective with it is possible any more");
}

std::string PeerTexts::Ended(Rank peer, const std::string& exception) const {
  return exception.empty() ? "" : Name(peer) + " ended with an exception: " + exception;
}

}  // namespace tfring
