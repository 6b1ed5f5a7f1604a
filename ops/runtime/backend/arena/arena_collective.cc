#include "ops/runtime/backend/arena/arena_collective.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ops/runtime/backend/arena/arena_flows.h"

namespace tfring {
namespace {

// With more bytes, and more than two members, streams are faster: they buffer more before a rank
// has to wait for another.
constexpr int64_t kMostMoved = 4 << 20;
// Entry times further apart than this are not believed: a locked schedule ends after 0.1 s of
// waiting, so only a stopped process makes larger gaps.
constexpr Duration kLongestWait = 10 * kSecond;

bool MovesInArenas(int64_t bytes, size_t members) { return members == 2 || bytes <= kMostMoved; }

}  // namespace

ArenaCollective::ArenaCollective(HostMemory* memory, Rank self)
    : memory_(memory),
      self_(self),
      group_(memory, self),
      allreduce_(&group_, &data_),
      exchange_(&group_, &data_) {}

bool ArenaCollective::Reaches(const HostMemory& memory, const Collective& collective) {
  const std::vector<Rank>& ranks = memory.ranks();
  return collective.members.size() > 1 &&
         std::includes(ranks.begin(), ranks.end(), collective.members.begin(),
                       collective.members.end());
}

bool ArenaCollective::Runs(const Collective& collective) {
  // In arenas the sequence tells plans apart.
  if (collective.is_void || collective.prepares) return false;
  const int64_t in = InputBytes(collective.buffers);
  const int64_t out = OutputBytes(collective.buffers);
  // A window is a member's part of a block, down to whole cache lines.
  const auto members = static_cast<int64_t>(collective.members.size());
  const int64_t window = kArenaBlockBytes / members - kArenaLine;
  const bool countable = window > 0 && std::max(in, out) / window < kArenaMaxBlocks;
  switch (collective.kind) {
    case CollectiveKind::kAllreduce:
      return collective.op != ReduceOp::kAdasum && in > 0 && countable;
    // A sum has the same bits in every size.
    case CollectiveKind::kReduce:
    case CollectiveKind::kReducescatter:
      return countable;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllgather:
      return countable && MovesInArenas(out, collective.members.size());
    default:
      return false;
  }
}

void ArenaCollective::Start(const Collective& collective, const Reduction& reduction) {
  collective_ = &collective;
  recalled_ = false;
  entered_ = {};
  told_ = true;
  seen_ = 0;
  met_ = false;
  mover_ = nullptr;
  header_ = MakeLaneHeader(collective.sequence, 0, "entry");
  group_.Start(collective);
  if (Runs(collective)) {
    data_.Start(collective, reduction);
    StartMover();
  }
  phase_ = Phase::kPost;
}

void ArenaCollective::StartMover() {
  ArenaFlows flows = ArenaFlowsOf(*collective_);
  const int64_t bytes = flows.total_bytes;
  const bool all_read_all = collective_->kind == CollectiveKind::kAllreduce;
  if (all_read_all && bytes > flows.slot_window) {
    header_ = MakeLaneHeader(collective_->sequence, bytes, "blocks");
    allreduce_.Start(bytes);
    mover_ = &allreduce_;
  } else {
    header_ = MakeLaneHeader(collective_->sequence, bytes, CollectiveKindName(collective_->kind));
    exchange_.Start(std::move(flows));
    mover_ = &exchange_;
  }
}

bool ArenaCollective::UsesStaging() const {
  return mover_ == &allreduce_ || (mover_ == &exchange_ && exchange_.stages_rounds());
}

// Whether a rank may still read the content that a slot had in an earlier plan.
bool ArenaCollective::Needs(const User& user) const {
  const ArenaEnd& end = group_.of_rank(user.rank).control()->end;
  return end.finished.load(std::memory_order_seq_cst) < user.key;
}

// Whether this rank needs a member's header.
bool ArenaCollective::MustMeet(int member) const {
  return collective_->locked || mover_ == nullptr || mover_->BytesFrom(member) > 0;
}

// Whether a member reads this rank's header, and perhaps more.
bool ArenaCollective::Reads(int member) const {
  return collective_->locked || mover_ == nullptr || mover_->BytesTo(member) > 0;
}

void ArenaCollective::SkipOthers() {
  while (seen_ < collective_->members.size() && !MustMeet(static_cast<int>(seen_))) ++seen_;
}

// Those that have to leave earlier plans before this rank can use their places.
std::vector<Rank> ArenaCollective::Leaving() const {
  std::vector<Rank> ranks;
  for (const User& user : slot_users_[group_.number() & 1]) {
    if (Needs(user)) ranks.push_back(user.rank);
  }
  for (const User& user : staging_users_) {
    if (UsesStaging() && Needs(user)) ranks.push_back(user.rank);
  }
  return ranks;
}

void ArenaCollective::Post() {
  ArenaHeader* header = group_.own().header(group_.number());
  header->number = group_.number();
  header->content = header_.content;
  header->is_void = collective_->is_void ? 1 : 0;
  header->entered = ShortTime(collective_->entered);
  if (mover_ != nullptr) mover_->Post();
  group_.Show(&header->key, group_.key());
  SkipOthers();
  phase_ = Phase::kMeet;
}

// The header of a member for this plan; null if it has not come.
const ArenaHeader* ArenaCollective::HeaderOf(int member) const {
  for (uint64_t side : {group_.number(), group_.number() + 1}) {
    const ArenaHeader* header = group_.of(member).header(side);
    if (header->key.load(std::memory_order_seq_cst) == group_.key()) return header;
  }
  return nullptr;
}

Status ArenaCollective::CheckHeader(int member, const ArenaHeader& header) const {
  // A member that does not enter a batch knows nothing of what is in it.
  if (header.is_void != 0 || collective_->is_void) return OkStatus();
  const std::string mismatch = LaneMismatch(
      header_, {header.key.load(std::memory_order_relaxed) - 1, header.content}, "arena");
  if (mismatch.empty()) return OkStatus();
  return Internal("the arena of rank " + std::to_string(collective_->members[member]) +
                  " is out of step: " + mismatch);
}

// Reads headers that have come; when all that are needed have, goes on to what follows.
Result<bool> ArenaCollective::Meet() {
  const size_t before = seen_;
  while (seen_ < collective_->members.size()) {
    const int member = static_cast<int>(seen_);
    const ArenaHeader* header = HeaderOf(member);
    if (header == nullptr) return seen_ > before;
    TFRING_RETURN_IF_ERROR(CheckHeader(member, *header));
    group_.Met(member, header->number);
    met_ |= member != collective_->self;
    recalled_ |= header->is_void != 0;
    if (collective_->entered != 0) NoteEntry(member, *header);
    ++seen_;
    SkipOthers();
  }
  phase_ = Phase::kMove;
  // What is small has come with the headers.
  if (!recalled_ && mover_ != nullptr && !UsesStaging() && mover_->CanMove(true)) {
    mover_->Move(true);
  }
  if (recalled_ || mover_ == nullptr || mover_->done()) Finish();
  return true;
}

// Ranks of one host have one clock.
void ArenaCollective::NoteEntry(int member, const ArenaHeader& header) {
  if (header.is_void != 0) return;
  const TimePoint own = collective_->entered;
  const TimePoint time = LongTime(header.entered, own);
  told_ = told_ && (time > own ? time - own : own - time) < kLongestWait;
  entered_.Add(group_.rank(member), time);
}

void ArenaCollective::Finish() {
  std::vector<User>& slot = slot_users_[group_.number() & 1];
  slot.clear();
  for (int m = 0; m < group_.size(); ++m) {
    if (m != group_.self() && Reads(m)) slot.push_back({group_.rank(m), group_.key()});
  }
  if (UsesStaging()) staging_users_ = slot;
  phase_ = Phase::kDone;
  // Nobody waits for this but who wants to use a place again.
  group_.Show(&group_.own().control()->end.finished, group_.key());
}

Result<bool> ArenaCollective::Advance() {
  switch (phase_) {
    case Phase::kPost:
      if (!Leaving().empty()) return false;
      Post();
      return true;
    case Phase::kMeet: {
      Result<bool> met = Meet();
      if (!met.ok() || *met) return met;
      if (mover_ == nullptr || !mover_->CanMove(false)) return false;
      mover_->Move(false);
      return true;
    }
    case Phase::kMove:
      if (!mover_->CanMove(true)) return false;
      mover_->Move(true);
      if (mover_->done()) Finish();
      return true;
    case Phase::kDone:
      break;
  }
  return false;
}

bool ArenaCollective::CanAdvance() const {
  switch (phase_) {
    case Phase::kPost:
      return Leaving().empty();
    case Phase::kMeet:
      return seen_ == collective_->members.size() || HeaderOf(static_cast<int>(seen_)) != nullptr ||
             (mover_ != nullptr && mover_->CanMove(false));
    case Phase::kMove:
      return mover_->CanMove(true);
    case Phase::kDone:
      break;
  }
  return true;
}

Rank ArenaCollective::Awaited() const {
  if (phase_ == Phase::kMeet) {
    return seen_ < collective_->members.size() ? collective_->members[seen_] : kNoRank;
  }
  if (phase_ == Phase::kMove) return mover_->Awaited();
  const std::vector<Rank> leaving = Leaving();
  return leaving.empty() ? kNoRank : leaving.front();
}

std::vector<ArenaWait> ArenaCollective::Waits() const {
  std::vector<ArenaWait> waits;
  if (phase_ == Phase::kPost) {
    const int64_t bytes = std::max<int64_t>(InputBytes(collective_->buffers), 1);
    for (Rank rank : Leaving()) waits.push_back({rank, bytes, true});
  } else if (phase_ == Phase::kMeet) {
    for (int m = static_cast<int>(seen_); m < group_.size(); ++m) {
      if (m == group_.self() || !MustMeet(m) || HeaderOf(m) != nullptr) continue;
      waits.push_back({group_.rank(m), std::max<int64_t>(BytesFrom(m), 1), true});
    }
  } else if (phase_ == Phase::kMove) {
    mover_->AddWaits(&waits);
  }
  return waits;
}

Rank ArenaCollective::ClosedMember() const {
  const Rank awaited = Awaited();
  // Still awaited: it may have done its part, and then closed, meanwhile.
  if (awaited != kNoRank && memory_->Closed(awaited) && Awaited() == awaited) return awaited;
  for (Rank rank : collective_->members) {
    // Who has left may close while others go on.
    if (rank != self_ && memory_->Closed(rank) && Needs({rank, group_.key()})) return rank;
  }
  return kNoRank;
}

}  // namespace tfring
