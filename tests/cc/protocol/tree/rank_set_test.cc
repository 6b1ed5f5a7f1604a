#include "ops/runtime/protocol/tree/rank_set.h"

#include <set>

#include "ops/sim/random.h"
#include "tests/cc/test.h"

namespace tfring {
namespace {

std::set<Rank> Members(const RankSet& set) {
  std::set<Rank> members;
  for (const RankRange& range : set.ranges()) {
    for (Rank rank = range.begin; rank < range.end; ++rank) members.insert(rank);
  }
  return members;
}

TEST(RangesThatTouchBecomeOne) {
  RankSet set(RankRange{3, 5});
  set.Add(RankSet(7));
  set.Add(RankSet(RankRange{5, 7}));
  EXPECT_EQ(set.ranges().size(), 1u);
  EXPECT_EQ(set.size(), 5);
}

// Against std::set, and there and back on the wire.
TEST(BehavesAsASetOfRanks) {
  sim::Random random(5);
  for (int round = 0; round < 3000; ++round) {
    RankSet sets[2];
    std::set<Rank> expected[2];
    for (int i = 0; i < 2; ++i) {
      for (int64_t n = random.Below(5); n > 0; --n) {
        const auto begin = static_cast<Rank>(random.Between(10, 29));
        const auto end = static_cast<Rank>(random.Between(begin, 30));
        sets[i].Add(RankSet(RankRange{begin, end}));
        for (Rank rank = begin; rank < end; ++rank) expected[i].insert(rank);
      }
      EXPECT_TRUE(Members(sets[i]) == expected[i]);
      EXPECT_EQ(sets[i].size(), static_cast<int64_t>(expected[i].size()));
      const auto some = static_cast<Rank>(random.Between(10, 30));
      EXPECT_EQ(sets[i].Contains(some), expected[i].count(some) > 0);
    }
    bool common = false;
    for (Rank rank : expected[0]) common = common || expected[1].count(rank) > 0;
    EXPECT_EQ(sets[0].Intersects(sets[1]), common);
    const RankRange range{static_cast<Rank>(random.Between(8, 20)),
                          static_cast<Rank>(random.Between(20, 32))};
    std::set<Rank> cut;
    for (Rank rank : expected[0]) {
      if (rank >= range.begin && rank < range.end) cut.insert(rank);
    }
    EXPECT_TRUE(Members(sets[0].In(range)) == cut);
    if (sets[0].empty()) continue;
    WireWriter out;
    sets[0].Write({10, 30}, &out);
    const std::string bytes = out.Take();
    WireReader in(bytes);
    EXPECT_TRUE(RankSet::Read({10, 30}, &in) == sets[0]);
    EXPECT_TRUE(in.ok() && in.remaining() == 0);
  }
}

TEST(RanksOutsideAreRefused) {
  WireWriter out;
  RankSet(RankRange{12, 14}).Write({10, 30}, &out);
  const std::string bytes = out.Take();
  WireReader in(bytes);
  EXPECT_TRUE(RankSet::Read({10, 13}, &in).empty());
  EXPECT_TRUE(!in.ok());
}

TEST(RandomBytesGiveASetWithinOrNone) {
  sim::Random random(6);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (int64_t n = random.Below(12); n > 0; --n) {
      bytes.push_back(static_cast<char>(random.Percent(70) ? random.Below(8) : random.Below(256)));
    }
    WireReader in(bytes);
    const RankSet set = RankSet::Read({10, 30}, &in);
    EXPECT_EQ(set.empty(), !in.ok());
    EXPECT_TRUE(set.In({10, 30}) == set);
  }
}

}  // namespace
}  // namespace tfring
