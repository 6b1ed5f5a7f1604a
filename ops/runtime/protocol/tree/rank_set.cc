#include "ops/runtime/protocol/tree/rank_set.h"

#include <algorithm>
#include <utility>

namespace tfring {

RankSet::RankSet(RankRange range) {
  if (range.begin < range.end) ranges_.push_back(range);
}

void RankSet::Add(const RankSet& other) {
  std::vector<RankRange> all;
  all.reserve(ranges_.size() + other.ranges_.size());
  std::merge(ranges_.begin(), ranges_.end(), other.ranges_.begin(), other.ranges_.end(),
             std::back_inserter(all),
             [](const RankRange& a, const RankRange& b) { return a.begin < b.begin; });
  ranges_.clear();
  for (const RankRange& range : all) {
    if (!ranges_.empty() && range.begin <= ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, range.end);
    } else {
      ranges_.push_back(range);
    }
  }
}

int64_t RankSet::size() const {
  int64_t count = 0;
  for (const RankRange& range : ranges_) count += range.end - range.begin;
  return count;
}

bool RankSet::Intersects(const RankSet& other) const {
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    if (a->end <= b->begin) {
      ++a;
    } else if (b->end <= a->begin) {
      ++b;
    } else {
      return true;
    }
  }
  return false;
}

bool RankSet::Contains(Rank rank) const { return Intersects(RankSet(rank)); }

RankSet RankSet::In(RankRange range) const {
  RankSet cut;
  for (const RankRange& own : ranges_) {
    const RankRange both{std::max(own.begin, range.begin), std::min(own.end, range.end)};
    if (both.begin < both.end) cut.ranges_.push_back(both);
  }
  return cut;
}

void RankSet::Write(RankRange whole, WireWriter* out) const {
  const bool all = ranges_.size() == 1 && ranges_.front() == whole;
  out->Unsigned(all ? 0 : ranges_.size());
  if (all) return;
  Rank last = whole.begin;
  for (const RankRange& range : ranges_) {
    out->Unsigned(static_cast<uint64_t>(range.begin - last));
    out->Unsigned(static_cast<uint64_t>(range.end - range.begin));
    last = range.end;
  }
}

RankSet RankSet::Read(RankRange whole, WireReader* in) {
  RankSet set;
  const size_t count = in->Count(2);
  if (!in->ok()) return set;
  if (count == 0) return RankSet(whole);
  set.ranges_.reserve(count);
  auto last = static_cast<uint64_t>(whole.begin);
  for (size_t i = 0; i < count && in->ok(); ++i) {
    const uint64_t begin = last + in->Unsigned32();
    const uint64_t end = begin + in->Unsigned32();
    const bool touches = i > 0 && begin == last;
    if (begin == end || touches || end > static_cast<uint64_t>(whole.end)) in->Fail();
    if (!in->ok()) break;
    set.ranges_.push_back({static_cast<Rank>(begin), static_cast<Rank>(end)});
    last = end;
  }
  if (set.ranges_.size() == 1 && set.ranges_.front() == whole) in->Fail();  // has a shorter form
  return in->ok() ? set : RankSet();
}

}  // namespace tfring
