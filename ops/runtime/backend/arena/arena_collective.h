#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_COLLECTIVE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_COLLECTIVE_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/arena/arena_allreduce.h"
#include "ops/runtime/backend/arena/arena_data.h"
#include "ops/runtime/backend/arena/arena_exchange.h"
#include "ops/runtime/backend/arena/arena_group.h"
#include "ops/runtime/backend/schedule/lane_header.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/host_memory.h"

namespace tfring {

// This rank's part of a collective among ranks of one host, through their arenas. Every member
// writes a header for the plan, with the small inputs that others read. It continues when it has
// seen the headers of the members from which it needs data; in a batch of a locked schedule, of all
// members. ArenaAllreduce or ArenaExchange does the rest. All sums are in the canonical order and
// each is computed once, or by all in the same way. So every rank has the same bits, whatever is
// fused and whichever rank comes first.
//
// A rank leaves when it has read what it needs and staged what others need. A rank reuses a slot of
// its arena once all readers of its old content are done. For earlier plans their `finished` field
// shows that; within one plan the movers decide who waits.
//
// A state machine: Advance does one thing that can be done without waiting. Used by one thread.
class ArenaCollective {
 public:
  // `memory` must outlive this.
  ArenaCollective(HostMemory* memory, Rank self);

  // Whether all of the collective's members have a part of `memory`.
  static bool Reaches(const HostMemory& memory, const Collective& collective);
  // Whether to run it here, the same on all members that enter it: an allreduce, reduce or
  // reducescatter; a broadcast or allgather of few bytes, or between two. The others are nothing
  // but streams between pairs, and faster as such; and a barrier needs no more than its plan.
  static bool Runs(const Collective& collective);

  // Begins a collective that this reaches, with a greater sequence than those before. Of a batch of
  // a lock that this does not run, it does only the entry. It must stay valid until done().
  void Start(const Collective& collective, const Reduction& reduction);

  // Moves what can be moved without waiting; true if anything was. Internal if the members do not
  // run the same collective.
  Result<bool> Advance();
  // Whether another member has been seen to begin the collective.
  bool met() const { return met_; }
  // Whether Advance would move anything or fail. Loads with memory_order_seq_cst.
  bool CanAdvance() const;

  bool done() const { return phase_ == Phase::kDone; }
  // When done: not all members have entered; no output was written.
  bool recalled() const { return recalled_; }
  // When done, of a batch of a lock whose members have all told when they entered it.
  AskTimes entered() const { return told_ ? entered_ : AskTimes(); }

  // A rank that has to publish something before this one can continue, and that is not itself
  // waiting for this one.
  Rank Awaited() const;
  std::vector<ArenaWait> Waits() const;
  // Bytes that a member reads from this rank in the current collective, and this rank from it.
  int64_t BytesTo(int member) const { return mover_ == nullptr ? 0 : mover_->BytesTo(member); }
  int64_t BytesFrom(int member) const { return mover_ == nullptr ? 0 : mover_->BytesFrom(member); }
  // A rank that this one waits for, or another member, that has closed its transport.
  Rank ClosedMember() const;

 private:
  enum class Phase { kDone, kPost, kMeet, kMove };
  // A rank that reads the content that a slot had in an earlier plan, and the key of that plan.
  struct User {
    Rank rank = kNoRank;
    uint64_t key = 0;
  };

  void StartMover();
  bool UsesStaging() const;
  bool Needs(const User& user) const;
  bool MustMeet(int member) const;
  bool Reads(int member) const;
  void SkipOthers();
  std::vector<Rank> Leaving() const;
  void Post();
  const ArenaHeader* HeaderOf(int member) const;
  Result<bool> Meet();
  Status CheckHeader(int member, const ArenaHeader& header) const;
  void NoteEntry(int member, const ArenaHeader& header);
  void Finish();

  HostMemory* const memory_;
  const Rank self_;
  ArenaGroup group_;
  ArenaData data_;
  ArenaAllreduce allreduce_;
  ArenaExchange exchange_;
  std::vector<User> slot_users_[2];
  std::vector<User> staging_users_;

  // The current plan.
  const Collective* collective_ = nullptr;
  Phase phase_ = Phase::kDone;
  ArenaMover* mover_ = nullptr;  // null: only headers are exchanged
  LaneHeader header_;
  bool recalled_ = false;
  AskTimes entered_;
  bool told_ = true;  // the entry times are close enough to be believed
  size_t seen_ = 0;   // the headers of the first `seen_` members were read or are not needed
  bool met_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_COLLECTIVE_H_
