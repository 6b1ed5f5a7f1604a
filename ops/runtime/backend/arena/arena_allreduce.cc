#include "ops/runtime/backend/arena/arena_allreduce.h"

#include <algorithm>
#include <cstring>

namespace tfring {
namespace {

constexpr int64_t kLine = 64;
// Every rank reads the slots of all: with more members, what is in blocks is read less often.
constexpr int64_t kSlotsBytes = 512 << 10;

int64_t MostInSlot(size_t members) {
  return std::min<int64_t>(kArenaSlotBytes, kSlotsBytes / static_cast<int64_t>(members));
}

}  // namespace

ArenaAllreduce::ArenaAllreduce(HostMemory* memory, Rank self)
    : memory_(memory), self_(self), own_(memory->PartOf(self)) {
  arenas_.resize(static_cast<size_t>(memory->ranks().back()) + 1);
  for (Rank rank : memory->ranks()) arenas_[rank] = Arena(memory->PartOf(rank));
}

bool ArenaAllreduce::Reaches(const HostMemory& memory, const Collective& collective) {
  const std::vector<Rank>& ranks = memory.ranks();
  return collective.members.size() > 1 &&
         std::includes(ranks.begin(), ranks.end(), collective.members.begin(),
                       collective.members.end());
}

bool ArenaAllreduce::Runs(const Collective& collective) {
  const int64_t bytes = InputBytes(collective.buffers);
  return collective.kind == CollectiveKind::kAllreduce && collective.op != ReduceOp::kAdasum &&
         bytes > 0 && bytes / kArenaBlockBytes < kArenaMaxBlocks;
}

void ArenaAllreduce::Start(const Collective& collective, const Reduction& reduction, bool check) {
  collective_ = &collective;
  bytes_ = Runs(collective) ? InputBytes(collective.buffers) : 0;
  blocks_ = bytes_ <= MostInSlot(collective.members.size())
                ? 0
                : (bytes_ + kArenaBlockBytes - 1) / kArenaBlockBytes;
  header_ = MakeLaneHeader(collective.sequence, bytes_, InBlocks() ? "arena" : "arena slot");
  if (bytes_ > 0) sum_.Start(collective, reduction, check);
  recalled_ = false;
  seen_ = 0;
  numbers_.assign(collective.members.size(), 0);
  inputs_.assign(collective.members.size(), nullptr);
  staged_ = 0;
  reduced_ = 0;
  copied_ = 0;
  ++number_;
  phase_ = Phase::kPost;
}

int64_t ArenaAllreduce::BlockBytes(int64_t block) const {
  return std::min(kArenaBlockBytes, bytes_ - block * kArenaBlockBytes);
}

ArenaAllreduce::Slice ArenaAllreduce::SliceOf(int64_t block, int member) const {
  const int64_t bytes = BlockBytes(block);
  const auto members = static_cast<int64_t>(collective_->members.size());
  const int64_t each = ((bytes + members - 1) / members + kLine - 1) / kLine * kLine;
  const int64_t begin = std::min(bytes, each * member);
  return {begin, std::min(each, bytes - begin)};
}

// Whether a rank may still read what was in a place in an earlier plan.
bool ArenaAllreduce::Needs(const User& user) const {
  const ArenaEnd& end = arenas_[user.rank].control()->end;
  return end.finished.load(std::memory_order_seq_cst) < user.number;
}

// Those that have to leave earlier plans before this rank can use their places.
std::vector<Rank> ArenaAllreduce::Leaving() const {
  std::vector<Rank> ranks;
  for (const User& user : slot_users_[number_ & 1]) {
    if (Needs(user)) ranks.push_back(user.rank);
  }
  for (const User& user : block_users_) {
    if (InBlocks() && Needs(user)) ranks.push_back(user.rank);
  }
  return ranks;
}

void ArenaAllreduce::Post() {
  ArenaHeader* header = own_.header(number_);
  header->number = number_;
  header->content = header_.content;
  header->is_void = collective_->is_void ? 1 : 0;
  if (bytes_ > 0 && !InBlocks()) {
    char* to = bytes_ <= kArenaPayloadBytes ? header->payload : own_.slot(number_);
    sum_.Stage(0, bytes_, to);
  }
  Show(&header->key, collective_->sequence + 1);
  phase_ = Phase::kMeet;
}

// The header of a member for this plan; null if it has not come.
const ArenaHeader* ArenaAllreduce::HeaderOf(int member) const {
  for (uint64_t side : {number_, number_ + 1}) {
    const ArenaHeader* header = ArenaOf(member).header(side);
    if (header->key.load(std::memory_order_seq_cst) == collective_->sequence + 1) return header;
  }
  return nullptr;
}

Status ArenaAllreduce::CheckHeader(int member, const ArenaHeader& header) const {
  // A member that does not enter a batch knows nothing of what is in it.
  if (header.is_void != 0 || collective_->is_void) return OkStatus();
  const std::string mismatch = LaneMismatch(
      header_, {header.key.load(std::memory_order_relaxed) - 1, header.content}, "arena");
  if (mismatch.empty()) return OkStatus();
  return Internal("the arena of rank " + std::to_string(collective_->members[member]) +
                  " is out of step: " + mismatch);
}

// Reads headers that have come; when all have, goes on to what follows.
Result<bool> ArenaAllreduce::Meet() {
  const size_t before = seen_;
  for (; seen_ < numbers_.size(); ++seen_) {
    const int member = static_cast<int>(seen_);
    const ArenaHeader* header = HeaderOf(member);
    if (header == nullptr) break;
    TFRING_RETURN_IF_ERROR(CheckHeader(member, *header));
    numbers_[seen_] = header->number;
    recalled_ |= header->is_void != 0;
    inputs_[seen_] =
        bytes_ <= kArenaPayloadBytes ? header->payload : ArenaOf(member).slot(header->number);
  }
  if (seen_ < numbers_.size()) return seen_ > before;
  if (recalled_ || bytes_ == 0) {
    Finish();
  } else if (InBlocks()) {
    phase_ = Phase::kBlocks;
  } else {
    sum_.Reduce(0, bytes_, inputs_, nullptr);
    Finish();
  }
  return true;
}

bool ArenaAllreduce::Has(int member, std::atomic<uint64_t> ArenaProgress::* what,
                         int64_t count) const {
  const ArenaProgress& progress = ArenaOf(member).control()->progress;
  return (progress.*what).load(std::memory_order_seq_cst) >= ArenaMark(numbers_[member], count);
}

// The first other member that has not got through `count` blocks; kNoRank if all have.
Rank ArenaAllreduce::FirstBelow(std::atomic<uint64_t> ArenaProgress::* what, int64_t count) const {
  if (count <= 0) return kNoRank;
  for (int m = 0; m < static_cast<int>(numbers_.size()); ++m) {
    if (m != collective_->self && !Has(m, what, count)) return collective_->members[m];
  }
  return kNoRank;
}

bool ArenaAllreduce::MayStage() const {
  return staged_ < blocks_ && staged_ < copied_ + kArenaDepth;
}

bool ArenaAllreduce::MayReduce() const {
  return phase_ == Phase::kBlocks && reduced_ < staged_ &&
         Others(&ArenaProgress::staged, reduced_ + 1);
}

bool ArenaAllreduce::MayCopy() const {
  return phase_ == Phase::kBlocks && copied_ < reduced_ &&
         Others(&ArenaProgress::reduced, copied_ + 1);
}

// The oldest block first: it is nearest in the caches.
bool ArenaAllreduce::MoveBlock() {
  if (MayCopy()) {
    Copy();
  } else if (MayReduce()) {
    Reduce();
  } else if (MayStage()) {
    Stage();
  } else {
    return false;
  }
  return true;
}

void ArenaAllreduce::Stage() {
  const int64_t begin = staged_ * kArenaBlockBytes;
  const Slice own = SliceOf(staged_, collective_->self);
  const int64_t after = own.offset + own.bytes;
  char* to = own_.staged(staged_);
  sum_.Stage(begin, own.offset, to);
  sum_.Stage(begin + after, BlockBytes(staged_) - after, to + after);
  ++staged_;
  Show(&own_.control()->progress.staged, ArenaMark(number_, staged_));
}

void ArenaAllreduce::Reduce() {
  const Slice own = SliceOf(reduced_, collective_->self);
  for (size_t m = 0; m < inputs_.size(); ++m) {
    inputs_[m] = ArenaOf(static_cast<int>(m)).staged(reduced_) + own.offset;
  }
  const int64_t begin = reduced_ * kArenaBlockBytes + own.offset;
  sum_.Look(begin, own.bytes);
  sum_.Reduce(begin, own.bytes, inputs_, own_.result(reduced_));
  ++reduced_;
  Show(&own_.control()->progress.reduced, ArenaMark(number_, reduced_));
}

void ArenaAllreduce::Copy() {
  for (int m = 0; m < static_cast<int>(inputs_.size()); ++m) {
    if (m == collective_->self) continue;
    const Slice slice = SliceOf(copied_, m);
    sum_.Store(copied_ * kArenaBlockBytes + slice.offset, slice.bytes, ArenaOf(m).result(copied_));
  }
  if (++copied_ == blocks_) Finish();
}

void ArenaAllreduce::Show(std::atomic<uint64_t>* place, uint64_t value) {
  place->store(value, std::memory_order_seq_cst);
  for (Rank rank : collective_->members) {
    if (rank != self_) memory_->Notify(rank);
  }
}

void ArenaAllreduce::Finish() {
  std::vector<User>& slot = slot_users_[number_ & 1];
  slot.clear();
  for (size_t m = 0; m < numbers_.size(); ++m) {
    if (static_cast<int>(m) != collective_->self)
      slot.push_back({collective_->members[m], numbers_[m]});
  }
  if (InBlocks()) block_users_ = slot;
  phase_ = Phase::kDone;
  // Nobody waits for this but who wants to use a place again.
  Show(&own_.control()->end.finished, number_);
}

Result<bool> ArenaAllreduce::Advance() {
  switch (phase_) {
    case Phase::kPost:
      if (!Leaving().empty()) return false;
      Post();
      return true;
    case Phase::kMeet: {
      Result<bool> met = Meet();
      if (!met.ok() || *met) return met;
      if (!MayStage()) return false;
      Stage();
      return true;
    }
    case Phase::kBlocks:
      return MoveBlock();
    case Phase::kDone:
      break;
  }
  return false;
}

bool ArenaAllreduce::CanAdvance() const {
  switch (phase_) {
    case Phase::kPost:
      return Leaving().empty();
    case Phase::kMeet:
      return HeaderOf(static_cast<int>(seen_)) != nullptr || MayStage();
    case Phase::kBlocks:
      return MayCopy() || MayReduce() || MayStage();
    case Phase::kDone:
      break;
  }
  return true;
}

// In blocks it is a member that has to stage or reduce a block for which it needs no more from this
// rank, which has got further itself.
Rank ArenaAllreduce::Awaited() const {
  if (phase_ == Phase::kMeet) return collective_->members[seen_];
  if (phase_ == Phase::kBlocks) {
    return copied_ < reduced_ ? FirstBelow(&ArenaProgress::reduced, copied_ + 1)
                              : FirstBelow(&ArenaProgress::staged, reduced_ + 1);
  }
  const std::vector<Rank> leaving = Leaving();
  return leaving.empty() ? kNoRank : leaving.front();
}

std::vector<ArenaAllreduce::Wait> ArenaAllreduce::Waits() const {
  std::vector<Wait> waits;
  if (phase_ == Phase::kPost) {
    for (Rank rank : Leaving()) waits.push_back({rank, std::max<int64_t>(bytes_, 1)});
    return waits;
  }
  for (int m = 0; m < static_cast<int>(numbers_.size()); ++m) {
    if (m == collective_->self) continue;
    bool awaited = false;
    if (phase_ == Phase::kMeet) awaited = m >= static_cast<int>(seen_) && HeaderOf(m) == nullptr;
    if (phase_ == Phase::kBlocks) {
      awaited = (copied_ < reduced_ && !Has(m, &ArenaProgress::reduced, copied_ + 1)) ||
                (reduced_ < staged_ && !Has(m, &ArenaProgress::staged, reduced_ + 1));
    }
    const int64_t got = copied_ * kArenaBlockBytes;
    if (awaited) waits.push_back({collective_->members[m], std::max<int64_t>(bytes_ - got, 1)});
  }
  return waits;
}

int64_t ArenaAllreduce::BytesWith(int member) const {
  if (!InBlocks()) return bytes_;
  const auto with = [&](int64_t block) {
    return SliceOf(block, member).bytes + SliceOf(block, collective_->self).bytes;
  };
  return (blocks_ - 1) * with(0) + with(blocks_ - 1);
}

Rank ArenaAllreduce::ClosedMember() const {
  const Rank awaited = Awaited();
  if (awaited != kNoRank && memory_->Closed(awaited)) return awaited;
  for (Rank rank : collective_->members) {
    if (rank != self_ && memory_->Closed(rank)) return rank;
  }
  return kNoRank;
}

}  // namespace tfring
