#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_EXCHANGE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/arena/arena_data.h"
#include "ops/runtime/backend/arena/arena_flows.h"
#include "ops/runtime/backend/arena/arena_group.h"

namespace tfring {

// A collective in which each member reads the parts that it needs from the inputs of others, and
// copies them or adds them up. All collectives of ArenaCollective except a large allreduce run
// here. In each round a rank stages a part of what others read (the first with its header), and
// reads a part of what it needs, also from its own input. Sums are in the canonical order, so every
// rank has the same bits.
//
// A rank stages a round when its readers have read the earlier round in the same place.
class ArenaExchange final : public ArenaMover {
 public:
  ArenaExchange(ArenaGroup* group, ArenaData* data) : group_(*group), data_(*data) {}

  void Start(ArenaFlows flows);
  // Whether it stages more than the part that goes with the header.
  bool stages_rounds() const { return rounds_out_ > 1; }

  void Post() override;
  bool CanMove(bool met) const override { return MayStage(met) || (met && MayRead()); }
  void Move(bool met) override;
  bool done() const override { return staged_ == rounds_out_ && read_ == rounds_in_; }
  Rank Awaited() const override;
  void AddWaits(std::vector<ArenaWait>* waits) const override;
  int64_t BytesTo(int member) const override { return flows_.sends[member].bytes; }
  int64_t BytesFrom(int member) const override { return flows_.gets[member].bytes; }

 private:
  bool MayStage(bool met) const;
  bool MayRead() const;
  bool Misses(int member) const;
  bool IsThere(int member) const;
  bool BlocksStaging(int member) const;
  char* Place(const Arena& arena, uint64_t number, int lane, int64_t flow, int64_t round) const;
  void StageRound();
  void Read();
  void Add();
  void CopyFrom(int member);

  ArenaGroup& group_;
  ArenaData& data_;
  ArenaFlows flows_;
  std::vector<ArenaFlows::Flow> lanes_;  // of this rank's input
  int64_t rounds_out_ = 0;
  int64_t rounds_in_ = 0;
  int64_t staged_ = 0;
  int64_t read_ = 0;
  std::vector<bool> got_;  // by member: whether its part of the current round was read
  std::vector<const char*> inputs_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_EXCHANGE_H_
