#include "ops/runtime/backend/arena/arena_group.h"

namespace tfring {

ArenaGroup::ArenaGroup(HostMemory* memory, Rank self)
    : memory_(memory), self_(self), own_(memory->PartOf(self)) {
  arenas_.resize(static_cast<size_t>(memory->ranks().back()) + 1);
  for (Rank rank : memory->ranks()) arenas_[rank] = Arena(memory->PartOf(rank));
}

void ArenaGroup::Start(const Collective& collective) {
  collective_ = &collective;
  numbers_.assign(collective.members.size(), 0);
  ++number_;
}

bool ArenaGroup::Has(int member, Count what, int64_t count) const {
  const ArenaProgress& progress = of(member).control()->progress;
  return (progress.*what).load(std::memory_order_seq_cst) >= ArenaMark(key(), count);
}

Rank ArenaGroup::FirstBelow(Count what, int64_t count) const {
  if (count <= 0) return kNoRank;
  for (int m = 0; m < size(); ++m) {
    if (m != self() && !Has(m, what, count)) return rank(m);
  }
  return kNoRank;
}

void ArenaGroup::ShowProgress(Count what, int64_t count) {
  Show(&(own_.control()->progress.*what), ArenaMark(key(), count));
}

void ArenaGroup::Show(std::atomic<uint64_t>* place, uint64_t value) {
  place->store(value, std::memory_order_seq_cst);
  for (Rank rank : collective_->members) {
    if (rank != self_) memory_->Notify(rank);
  }
}

}  // namespace tfring
