// The order of what goes to the CPU backend, with places that are used later.
#include "ops/runtime/backend/cpu_places.h"

#include <string>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::testing::cpu_places_test {
namespace {

// Notes what it is given; ends it when it is told to, in order.
class Scripted final : public CollectiveBackend {
 public:
  const char* name() const override { return "scripted"; }
  void Submit(Collective collective) override { got.push_back(collective.sequence); }
  void Abort(Status) override {}
  int64_t bytes_sent() const override { return 0; }
  int64_t wakeups() const override { return 0; }

  std::vector<uint64_t> got;
};

Collective Numbered(uint64_t sequence) {
  Collective collective;
  collective.sequence = sequence;
  return collective;
}

struct Fixture {
  Fixture() : places([this](Completion completion) { sunk.push_back(completion.sequence); }) {
    places.SetBackend(&backend);
  }
  CpuPlaces::Ended Note() {
    return [this](Completion completion) { noted.push_back(completion); };
  }
  void EndNext() {
    Completion completion;
    completion.sequence = backend.got[ended++];
    places.OnCompletion(completion);
  }
  Scripted backend;
  std::vector<uint64_t> sunk;
  std::vector<Completion> noted;
  size_t ended = 0;
  CpuPlaces places;
};

using Numbers = std::vector<uint64_t>;

TEST(WhatComesAfterAPlaceWaitsForIt) {
  Fixture f;
  f.places.Submit(Numbered(1));
  const uint64_t second = f.places.Take();
  const uint64_t third = f.places.Take();
  f.places.Submit(Numbered(4));
  const uint64_t fifth = f.places.Take();
  f.places.Submit(Numbered(6));
  f.places.Run(third, Numbered(3), f.Note());
  EXPECT_TRUE(f.backend.got == (Numbers{1}));
  f.places.Run(second, Numbered(2), f.Note());
  EXPECT_TRUE(f.backend.got == (Numbers{1, 2, 3, 4}));
  f.places.GiveUp(fifth);
  EXPECT_TRUE(f.backend.got == (Numbers{1, 2, 3, 4, 6}));
  f.places.Submit(Numbered(7));
  for (int i = 0; i < 6; ++i) f.EndNext();
  EXPECT_TRUE(f.sunk == (Numbers{1, 4, 6, 7}));
  ASSERT_EQ(f.noted.size(), size_t{2});
  EXPECT_EQ(f.noted[0].sequence, uint64_t{2});
  EXPECT_EQ(f.noted[1].sequence, uint64_t{3});
}

// The staged collective and the meeting before it have one number.
TEST(TwoPlacesMayHaveOneNumberOfAPlan) {
  Fixture f;
  f.places.Run(f.places.Take(), Numbered(5), f.Note());
  f.places.Submit(Numbered(5));
  f.EndNext();
  EXPECT_TRUE(f.sunk.empty());
  f.EndNext();
  EXPECT_TRUE(f.sunk == (Numbers{5}));
}

TEST(AfterAnAbortNothingWaits) {
  Fixture f;
  const uint64_t first = f.places.Take();
  f.places.Submit(Numbered(2));
  const uint64_t third = f.places.Take();
  f.places.Open();
  EXPECT_TRUE(f.backend.got == (Numbers{2}));
  f.places.Submit(Numbered(4));
  f.places.Run(third, Numbered(3), f.Note());
  f.places.GiveUp(first);
  EXPECT_TRUE(f.backend.got == (Numbers{2, 4, 3}));
  for (int i = 0; i < 3; ++i) f.EndNext();
  EXPECT_TRUE(f.sunk == (Numbers{2, 4}));
  EXPECT_EQ(f.noted.size(), size_t{1});
}

TEST(WithoutABackendWhatRunsEndsAtOnce) {
  Fixture f;
  const uint64_t first = f.places.Take();
  f.places.Open();
  f.places.SetBackend(nullptr);
  f.places.Run(first, Numbered(9), f.Note());
  ASSERT_EQ(f.noted.size(), size_t{1});
  EXPECT_EQ(f.noted[0].sequence, uint64_t{9});
  EXPECT_TRUE(f.noted[0].status.code() == StatusCode::kCancelled);
}

}  // namespace
}  // namespace tfring::testing::cpu_places_test
