#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_ALLREDUCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/backend/arena/arena_layout.h"
#include "ops/runtime/backend/arena/arena_sum.h"
#include "ops/runtime/backend/schedule/lane_header.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/host_memory.h"

namespace tfring {

// This rank's part of an allreduce among ranks of one host, through their arenas. Every member
// writes a header for the plan, and goes on when it has seen those of all others. Small inputs are
// in the header or in a slot beside it, and every member adds up all of them. Larger ones go in
// blocks, each divided into a slice per member: a rank copies its input to its arena (stages it),
// adds up its own slice of all inputs (reduces it) for all to see, and copies the slices of the
// others into its output. kArenaDepth blocks may be under way. All sums are in the canonical order
// and each is computed once, or by all in the same way, so every rank has the same bits, whatever
// is fused and whoever comes first.
//
// A rank leaves when it has read what it needs. It uses a place of its arena again when the members
// of the plan that was there have read it: in later plans their `finished` tells. Within a plan a
// rank stages a block only when it has copied the one that had the place before, and so has seen
// that all others have reduced that one; and who sees a block staged by all knows that all have
// copied the result that its own slice will overwrite.
//
// A state machine: Advance does one thing that can be done without waiting. Used by one thread.
class ArenaAllreduce {
 public:
  // What this rank waits for.
  struct Wait {
    Rank peer = kNoRank;
    int64_t bytes = 0;
  };

  // `memory` must outlive this.
  ArenaAllreduce(HostMemory* memory, Rank self);

  // Whether all of the collective's members have a part of `memory`.
  static bool Reaches(const HostMemory& memory, const Collective& collective);
  // Whether it is an allreduce that this can run.
  static bool Runs(const Collective& collective);

  // Begins a collective that is one of the two: for a batch of a lock that this does not run, only
  // the entry to it. It must stay valid until done(). `check`: look for NaN.
  void Start(const Collective& collective, const Reduction& reduction, bool check);

  // Moves what can be moved without waiting; true if anything was. Internal if the members do not
  // run the same collective.
  Result<bool> Advance();
  // How many members, from the first on, have been seen to begin the collective.
  size_t seen() const { return seen_; }
  // Whether Advance would move anything or fail. Loads with memory_order_seq_cst.
  bool CanAdvance() const;

  bool done() const { return phase_ == Phase::kDone; }
  // When done: not all members have entered; no output was written.
  bool recalled() const { return recalled_; }
  std::vector<BadValues> TakeBadValues() { return sum_.TakeBadValues(); }

  // A rank that has to change something before this one can go on, and that does not wait for this
  // one to do so.
  Rank Awaited() const;
  std::vector<Wait> Waits() const;
  // How much a member reads from this rank in the present collective; it is as much the other way
  // round.
  int64_t BytesWith(int member) const;
  // A rank that this one waits for, or another member, that has closed its transport.
  Rank ClosedMember() const;

 private:
  enum class Phase { kDone, kPost, kMeet, kBlocks };
  // A rank that has had a plan in a place, and the number of that plan.
  struct User {
    Rank rank = kNoRank;
    uint64_t number = 0;
  };
  struct Slice {
    int64_t offset = 0;  // in the block
    int64_t bytes = 0;
  };

  bool InBlocks() const { return blocks_ > 0; }
  int64_t BlockBytes(int64_t block) const;
  Slice SliceOf(int64_t block, int member) const;
  const Arena& ArenaOf(int member) const { return arenas_[collective_->members[member]]; }
  bool Needs(const User& user) const;
  std::vector<Rank> Leaving() const;
  void Post();
  const ArenaHeader* HeaderOf(int member) const;
  Result<bool> Meet();
  Status CheckHeader(int member, const ArenaHeader& header) const;
  bool Has(int member, std::atomic<uint64_t> ArenaProgress::* what, int64_t count) const;
  Rank FirstBelow(std::atomic<uint64_t> ArenaProgress::* what, int64_t count) const;
  bool Others(std::atomic<uint64_t> ArenaProgress::* what, int64_t count) const {
    return FirstBelow(what, count) == kNoRank;
  }
  bool MayStage() const;
  bool MayReduce() const;
  bool MayCopy() const;
  bool MoveBlock();
  void Stage();
  void Reduce();
  void Copy();
  void Show(std::atomic<uint64_t>* place, uint64_t value);
  void Finish();

  HostMemory* const memory_;
  const Rank self_;
  std::vector<Arena> arenas_;  // by rank
  Arena own_;
  ArenaSum sum_;
  uint64_t number_ = 0;  // of the present or last plan
  std::vector<User> slot_users_[2];
  std::vector<User> block_users_;

  // The present plan.
  const Collective* collective_ = nullptr;
  Phase phase_ = Phase::kDone;
  LaneHeader header_;
  int64_t bytes_ = 0;
  int64_t blocks_ = 0;  // 0: small
  bool recalled_ = false;
  size_t seen_ = 0;                // members whose headers were read, the first ones
  std::vector<uint64_t> numbers_;  // of the plan at each member
  std::vector<const char*> inputs_;
  int64_t staged_ = 0;
  int64_t reduced_ = 0;
  int64_t copied_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_ALLREDUCE_H_
