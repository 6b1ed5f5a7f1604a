#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESENDS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESENDS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// The requests that ranks have to send once more, in full, because the cache id that they sent was
// evicted. A rank answers in the order in which it is asked. Its joins wait meanwhile, because what
// it requested before it joined has to count as requested before. Part of the Sequencer.
class Resends {
 public:
  // A join, and Attempts::LeftCount when it was made.
  using Join = std::pair<uint64_t, Request>;

  // `made_at` is Attempts::LeftCount when the rank made the request.
  void Ask(Rank rank, uint32_t cache_id, uint64_t made_at);

  // Whether a rank, or any rank, has to answer.
  bool awaits(Rank rank) const { return awaited_.count(rank) > 0; }
  bool empty() const { return awaited_.empty(); }

  // The rank has answered: `made_at` of that request. Nothing if it was not asked.
  std::optional<uint64_t> TakeAnswered(Rank rank);

  // For a rank that has to answer.
  void KeepJoin(Rank rank, Join join) { joins_[rank].push_back(std::move(join)); }
  // Hands over the kept joins of the rank; none before it has answered everything.
  std::vector<Join> TakeJoins(Rank rank);

  // Hands over the ids since the last call, by rank.
  std::map<Rank, std::vector<uint32_t>> TakeIds() { return std::exchange(ids_, {}); }

  // The rank has left.
  void Forget(Rank rank);

 private:
  std::map<Rank, std::vector<uint32_t>> ids_;
  std::map<Rank, std::deque<uint64_t>> awaited_;  // `made_at` of each, in order
  std::map<Rank, std::vector<Join>> joins_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESENDS_H_
