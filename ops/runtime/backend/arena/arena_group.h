#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_GROUP_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_GROUP_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "ops/runtime/backend/arena/arena_layout.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/host_memory.h"

namespace tfring {

// The members of the current plan, their arenas, and the progress that each has published. Members
// are numbered by their position. Used by one thread.
class ArenaGroup {
 public:
  using Count = std::atomic<uint64_t> ArenaProgress::*;

  // `memory` must outlive this.
  ArenaGroup(HostMemory* memory, Rank self);

  // Begins this rank's next plan. `collective` must stay valid until the next Start.
  void Start(const Collective& collective);

  uint64_t key() const { return collective_->sequence + 1; }
  uint64_t number() const { return number_; }
  int size() const { return static_cast<int>(numbers_.size()); }
  int self() const { return collective_->self; }
  Rank rank(int member) const { return collective_->members[member]; }
  const Arena& own() const { return own_; }
  const Arena& of(int member) const { return arenas_[rank(member)]; }
  const Arena& of_rank(Rank rank) const { return arenas_[rank]; }
  // Each member counts its plans itself: the number of this one there, once its header was read.
  uint64_t number_at(int member) const { return numbers_[member]; }
  void Met(int member, uint64_t number) { numbers_[member] = number; }

  // Whether a member has finished `count` blocks or rounds.
  bool Has(int member, Count what, int64_t count) const;
  // The first other member that has not; kNoRank if all have.
  Rank FirstBelow(Count what, int64_t count) const;
  bool OthersHave(Count what, int64_t count) const { return FirstBelow(what, count) == kNoRank; }

  // Publishes that this rank has finished `count` blocks or rounds.
  void ShowProgress(Count what, int64_t count);
  // Publishes any other value in this rank's arena.
  void Show(std::atomic<uint64_t>* place, uint64_t value);

 private:
  HostMemory* const memory_;
  const Rank self_;
  std::vector<Arena> arenas_;  // by rank
  Arena own_;
  uint64_t number_ = 0;  // of the current or last plan
  const Collective* collective_ = nullptr;
  std::vector<uint64_t> numbers_;  // by member
};

// What a rank waits for.
struct ArenaWait {
  Rank peer = kNoRank;
  int64_t bytes = 0;
  bool receives = true;  // false: for the peer to read what this rank has staged
};

// One way to move data through the arenas of a group: a state machine that does one thing at a time
// and never waits. A plan begins with the headers of the members. Until this rank has read the
// headers that it needs (`met`), a mover may only do what needs no other member.
class ArenaMover {
 public:
  virtual ~ArenaMover() = default;
  // Writes the data that goes with the header. Its slots are free.
  virtual void Post() = 0;
  virtual bool CanMove(bool met) const = 0;
  virtual void Move(bool met) = 0;
  virtual bool done() const = 0;
  // If `met` and it cannot move: a member that has to publish something first, and that is not
  // itself waiting for this rank.
  virtual Rank Awaited() const = 0;
  virtual void AddWaits(std::vector<ArenaWait>* waits) const = 0;
  // Bytes that a member reads from this rank in the whole plan, and this rank from it. A rank does
  // not read the header of a member from which it needs no bytes.
  virtual int64_t BytesTo(int member) const = 0;
  virtual int64_t BytesFrom(int member) const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_GROUP_H_
