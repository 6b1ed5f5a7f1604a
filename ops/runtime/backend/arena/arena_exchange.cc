#include "ops/runtime/backend/arena/arena_exchange.h"

#include <algorithm>
#include <utility>

namespace tfring {

void ArenaExchange::Start(ArenaFlows flows) {
  flows_ = std::move(flows);
  const int members = group_.size();
  lanes_.assign(flows_.one_lane ? 1 : static_cast<size_t>(members - 1), {});
  rounds_out_ = 0;
  rounds_in_ = 0;
  for (int m = 0; m < members; ++m) {
    rounds_in_ = std::max(rounds_in_, flows_.Rounds(flows_.gets[m].bytes));
    if (m == group_.self() || flows_.sends[m].bytes == 0) continue;
    lanes_[flows_.LaneOf(group_.self(), m)] = flows_.sends[m];
    rounds_out_ = std::max(rounds_out_, flows_.Rounds(flows_.sends[m].bytes));
  }
  staged_ = 0;
  read_ = 0;
  got_.assign(static_cast<size_t>(members), false);
  inputs_.assign(static_cast<size_t>(members), nullptr);
}

// Where a flow of `flow` bytes has its part of a round.
char* ArenaExchange::Place(const Arena& arena, uint64_t number, int lane, int64_t flow,
                           int64_t round) const {
  if (round > 0) {
    const int64_t place = (round - 1) % flows_.depth;
    return arena.staging() + place * flows_.round_bytes + lane * flows_.window;
  }
  if (flow > flows_.header_window) return arena.slot(number) + lane * flows_.slot_window;
  return arena.header(number)->payload + lane * flows_.header_window;
}

void ArenaExchange::Post() {
  if (rounds_out_ > 0) StageRound();
}

void ArenaExchange::StageRound() {
  const int64_t begin = flows_.Begin(staged_);
  for (int lane = 0; lane < static_cast<int>(lanes_.size()); ++lane) {
    const ArenaFlows::Flow& flow = lanes_[lane];
    const int64_t bytes = flows_.BytesIn(flow.bytes, staged_);
    if (bytes == 0) continue;
    data_.Stage(flow.offset + begin, bytes,
                Place(group_.own(), group_.number(), lane, flow.bytes, staged_));
  }
  ++staged_;
}

// Whether a member that reads the next round has not read the one that had its place, if any did.
bool ArenaExchange::BlocksStaging(int member) const {
  const int64_t before = staged_ - flows_.depth;
  return before >= 1 && flows_.Rounds(flows_.sends[member].bytes) > staged_ &&
         !group_.Has(member, &ArenaProgress::read, before + 1);
}

// Whether a member's part of the present round is needed and has not been read.
bool ArenaExchange::Misses(int member) const {
  return !got_[member] && flows_.BytesIn(flows_.gets[member].bytes, read_) > 0 &&
         read_ < rounds_in_;
}

// What is in the first round came with the headers.
bool ArenaExchange::IsThere(int member) const {
  return member == group_.self() || read_ == 0 ||
         group_.Has(member, &ArenaProgress::staged, read_ + 1);
}

bool ArenaExchange::MayStage(bool met) const {
  if (staged_ >= rounds_out_) return false;
  if (staged_ <= flows_.depth) return true;
  if (!met) return false;
  for (int m = 0; m < group_.size(); ++m) {
    if (m != group_.self() && BlocksStaging(m)) return false;
  }
  return true;
}

bool ArenaExchange::MayRead() const {
  bool some = false;
  for (int m = 0; m < group_.size(); ++m) {
    if (!Misses(m)) continue;
    const bool there = IsThere(m);
    if (flows_.adds && !there) return false;
    some |= there;
    if (some && !flows_.adds) return true;
  }
  return some;
}

void ArenaExchange::Move(bool met) {
  if (MayStage(met)) {
    StageRound();
    group_.ShowProgress(&ArenaProgress::staged, staged_);
  } else if (met && MayRead()) {
    Read();
  }
}

void ArenaExchange::Read() {
  if (flows_.adds) {
    Add();
  } else {
    bool all = true;
    for (int m = 0; m < group_.size(); ++m) {
      if (!Misses(m)) continue;
      got_[m] = IsThere(m);
      if (got_[m]) CopyFrom(m);
      all &= got_[m];
    }
    if (!all) return;
    std::fill(got_.begin(), got_.end(), false);
  }
  ++read_;
  // Nobody stages anything for this rank where its last rounds are.
  if (read_ + flows_.depth <= rounds_in_) group_.ShowProgress(&ArenaProgress::read, read_);
}

void ArenaExchange::Add() {
  const int self = group_.self();
  const int64_t begin = flows_.Begin(read_);
  const ArenaFlows::Flow& own = flows_.sends[self];
  const int64_t bytes = flows_.BytesIn(own.bytes, read_);
  for (int m = 0; m < group_.size(); ++m) {
    inputs_[m] = Place(group_.of(m), group_.number_at(m), flows_.LaneOf(m, self),
                       flows_.gets[m].bytes, read_);
  }
  data_.Reduce(own.offset + begin, flows_.gets[self].offset + begin, bytes, inputs_, nullptr);
}

void ArenaExchange::CopyFrom(int member) {
  const ArenaFlows::Flow& flow = flows_.gets[member];
  const int64_t begin = flows_.Begin(read_);
  const int64_t bytes = flows_.BytesIn(flow.bytes, read_);
  if (member == group_.self()) {
    data_.CopyOwn(flows_.sends[member].offset + begin, flow.offset + begin, bytes);
    return;
  }
  data_.Store(flow.offset + begin, bytes,
              Place(group_.of(member), group_.number_at(member),
                    flows_.LaneOf(member, group_.self()), flow.bytes, read_));
}

// Of what this rank has still to do, the earlier round decides: to stage one needs less of others
// than to read it. So whoever is awaited waits, if at all, for somebody at an earlier round.
Rank ArenaExchange::Awaited() const {
  const bool stages = staged_ < rounds_out_ && (staged_ <= read_ || read_ == rounds_in_);
  for (int m = 0; m < group_.size(); ++m) {
    if (m == group_.self()) continue;
    if (stages ? BlocksStaging(m) : Misses(m) && !IsThere(m)) return group_.rank(m);
  }
  return kNoRank;
}

void ArenaExchange::AddWaits(std::vector<ArenaWait>* waits) const {
  for (int m = 0; m < group_.size(); ++m) {
    if (m == group_.self()) continue;
    if (Misses(m) && !IsThere(m)) {
      waits->push_back({group_.rank(m), flows_.gets[m].bytes - flows_.Begin(read_), true});
    } else if (staged_ < rounds_out_ && BlocksStaging(m)) {
      const int64_t shown = flows_.Begin(staged_ - flows_.depth);
      waits->push_back({group_.rank(m), flows_.sends[m].bytes - shown, false});
    }
  }
}

}  // namespace tfring
