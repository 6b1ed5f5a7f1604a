#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_ALLREDUCE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_ALLREDUCE_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/arena/arena_data.h"
#include "ops/runtime/backend/arena/arena_group.h"

namespace tfring {

// A large allreduce, in blocks with one slice per member. A rank copies its input to its arena
// (stages it), adds up its slice of all inputs where all can read it (reduces it), and copies the
// slices of the others into its output. kArenaDepth blocks may be in progress. Each sum is computed
// once.
//
// A rank stages a block only when it has copied the earlier block in the same place: it has then
// seen that all others have reduced that one. A rank that sees a block staged by all knows that all
// have copied the result that its slice will overwrite.
class ArenaAllreduce final : public ArenaMover {
 public:
  ArenaAllreduce(ArenaGroup* group, ArenaData* data) : group_(*group), data_(*data) {}

  void Start(int64_t bytes);

  void Post() override {}
  bool CanMove(bool met) const override {
    return MayStage() || (met && (MayCopy() || MayReduce()));
  }
  void Move(bool met) override;
  bool done() const override { return copied_ == blocks_; }
  Rank Awaited() const override;
  void AddWaits(std::vector<ArenaWait>* waits) const override;
  int64_t BytesTo(int member) const override;
  int64_t BytesFrom(int member) const override { return BytesTo(member); }

 private:
  struct Slice {
    int64_t offset = 0;  // in the block
    int64_t bytes = 0;
  };

  int64_t BlockBytes(int64_t block) const;
  Slice SliceOf(int64_t block, int member) const;
  bool MayStage() const;
  bool MayReduce() const;
  bool MayCopy() const;
  void Stage();
  void Reduce();
  void Copy();

  ArenaGroup& group_;
  ArenaData& data_;
  int64_t bytes_ = 0;
  int64_t blocks_ = 0;
  int64_t staged_ = 0;
  int64_t reduced_ = 0;
  int64_t copied_ = 0;
  std::vector<const char*> inputs_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_ALLREDUCE_H_
