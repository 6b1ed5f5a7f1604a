#include "ops/runtime/protocol/negotiation/resends.h"

namespace tfring {

void Resends::Ask(Rank rank, uint32_t cache_id, uint64_t made_at) {
  ids_[rank].push_back(cache_id);
  awaited_[rank].push_back(made_at);
}

std::optional<uint64_t> Resends::TakeAnswered(Rank rank) {
  const auto awaited = awaited_.find(rank);
  if (awaited == awaited_.end()) return std::nullopt;
  const uint64_t made_at = awaited->second.front();
  awaited->second.pop_front();
  if (awaited->second.empty()) awaited_.erase(awaited);
  return made_at;
}

std::vector<Resends::Join> Resends::TakeJoins(Rank rank) {
  const auto found = joins_.find(rank);
  if (awaits(rank) || found == joins_.end()) return {};
  std::vector<Join> joins = std::move(found->second);
  joins_.erase(found);
  return joins;
}

void Resends::Forget(Rank rank) {
  ids_.erase(rank);
  awaited_.erase(rank);
  joins_.erase(rank);
}

}  // namespace tfring
