#include "ops/runtime/crew/roster.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::roster_test {
namespace {

// A crew without threads: a step is what a thread of a Crew does under its lock, and the seed says
// whose is next. Duties are queues of pieces of work. Those with an even number add work to others
// at their end only; those with an odd number may do so at any time, and may last for ever.
class Play {
 public:
  Play(uint32_t seed, size_t duties) : random_(seed), threads_(duties), pieces_(duties, 0) {
    for (size_t i = 0; i < duties; ++i) roster_.Open();
    carriers_.assign(duties, 0);
    for (Thread& thread : threads_) Look(&thread);
  }

  void Step() {
    if (Below(4) == 0) return Add(Below(pieces_.size()), true);
    Thread& thread = threads_[Below(threads_.size())];
    if (thread.state == State::kAsleep && Below(8) == 0) thread.state = State::kWoken;
    if (thread.state != State::kWorks) return Advance(&thread);
    const bool at_its_end = thread.duty % 2 == 0;
    if (Below(2) == 0) {
      Add(Below(pieces_.size()), !at_its_end);
      if (!at_its_end) return;
    }
    Advance(&thread);
  }

  // All goes on, but what may last for ever lasts unless `all`.
  void Settle(bool all) {
    for (int left = 1000; left > 0; --left) {
      for (Thread& thread : threads_) {
        if (all || thread.state != State::kWorks || thread.duty % 2 == 0) Advance(&thread);
      }
    }
  }

  bool Waits(size_t duty) const { return pieces_[duty] > 0 && carriers_[duty] == 0; }
  int carriers(size_t duty) const { return carriers_[duty]; }
  int pieces(size_t duty) const { return pieces_[duty]; }
  int wakes() const { return wakes_; }
  int adds() const { return adds_; }

 private:
  enum class State { kWorks, kAsleep, kWoken };
  struct Thread {
    State state = State::kAsleep;
    size_t duty = 0;
    bool more = false;
  };

  size_t Below(size_t limit) { return random_() % limit; }

  void Add(size_t duty, bool may_wake) {
    ++adds_;
    ++pieces_[duty];
    EXPECT_TRUE(roster_.Add(duty));
    if (may_wake && roster_.Wakes()) Wake();
  }
  // The system chooses whom. A thread that woke for no reason cannot be it.
  void Wake() {
    ++wakes_;
    std::vector<Thread*> asleep;
    for (Thread& thread : threads_) {
      if (thread.state == State::kAsleep) asleep.push_back(&thread);
    }
    if (!asleep.empty()) asleep[Below(asleep.size())]->state = State::kWoken;
  }
  void Advance(Thread* thread) {
    if (thread->state == State::kAsleep) return;
    if (thread->state == State::kWoken) {
      roster_.Woke();
    } else {
      --carriers_[thread->duty];
      roster_.Carried(thread->duty, thread->more);
    }
    Look(thread);
  }
  void Look(Thread* thread) {
    thread->duty = roster_.Take();
    if (thread->duty == Roster::kNothing) {
      roster_.Sleeps();
      thread->state = State::kAsleep;
      return;
    }
    thread->state = State::kWorks;
    EXPECT_EQ(++carriers_[thread->duty], 1);
    if (pieces_[thread->duty] > 0) --pieces_[thread->duty];
    thread->more = pieces_[thread->duty] > 0;
    if (roster_.Wakes()) Wake();
  }

  std::mt19937 random_;
  Roster roster_;
  std::vector<Thread> threads_;
  std::vector<int> pieces_;  // that nobody has taken
  std::vector<int> carriers_;
  int wakes_ = 0;
  int adds_ = 0;
};

TEST(NoWorkIsLeftLyingAndNoneIsDoneByTwo) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const size_t duties = 1 + seed % 4;
    Play play(seed, duties);
    for (int step = 0; step < 60; ++step) play.Step();
    play.Settle(/*all=*/false);
    for (size_t duty = 0; duty < duties; ++duty) {
      if (play.Waits(duty))
        return testing::Fail(__FILE__, __LINE__, "seed " + std::to_string(seed));
    }
    play.Settle(/*all=*/true);
    for (size_t duty = 0; duty < duties; ++duty) {
      EXPECT_EQ(play.pieces(duty), 0);
      EXPECT_EQ(play.carriers(duty), 0);
    }
    // Each piece of work wakes one thread at most for itself, and one for what it leaves.
    EXPECT_TRUE(play.wakes() <= 2 * play.adds());
  }
}

// `done` callbacks and collectives, as they are opened by the runtime, on two threads that sleep.
struct Pair {
  Pair() {
    EXPECT_EQ(roster.Open(), done);
    EXPECT_EQ(roster.Open(), moves);
    roster.Sleeps();
    roster.Sleeps();
  }
  Roster roster;
  const size_t done = 0;
  const size_t moves = 1;
};

TEST(WhoeverMovesRunsDoneItselfAndWakesNobody) {
  Pair pair;
  EXPECT_TRUE(pair.roster.Add(pair.moves));
  EXPECT_TRUE(pair.roster.Wakes());
  EXPECT_TRUE(!pair.roster.Wakes());  // one is enough
  pair.roster.Woke();
  EXPECT_EQ(pair.roster.Take(), pair.moves);
  EXPECT_TRUE(!pair.roster.Wakes());
  EXPECT_TRUE(pair.roster.Add(pair.done));  // at its end: it does not ask whom to wake
  pair.roster.Carried(pair.moves, false);
  EXPECT_EQ(pair.roster.Take(), pair.done);
  EXPECT_TRUE(!pair.roster.Wakes());
  pair.roster.Carried(pair.done, false);
  EXPECT_EQ(pair.roster.Take(), Roster::kNothing);
}

TEST(MoreCollectivesWakeTheOther) {
  Pair pair;
  EXPECT_TRUE(pair.roster.Add(pair.moves));
  EXPECT_TRUE(pair.roster.Wakes());
  pair.roster.Woke();
  EXPECT_EQ(pair.roster.Take(), pair.moves);
  EXPECT_TRUE(pair.roster.Add(pair.moves));
  EXPECT_TRUE(!pair.roster.Wakes());  // it is being carried out
  EXPECT_TRUE(pair.roster.Add(pair.done));
  pair.roster.Carried(pair.moves, false);
  EXPECT_EQ(pair.roster.Take(), pair.done);
  EXPECT_TRUE(pair.roster.Wakes());
  // A short `done`: the first is back before the other has woken.
  pair.roster.Carried(pair.done, false);
  EXPECT_EQ(pair.roster.Take(), pair.moves);
  pair.roster.Woke();
  EXPECT_EQ(pair.roster.Take(), Roster::kNothing);
}

TEST(AClosedDutyTakesNoWorkAndOneWithWorkClosesLater) {
  Pair pair;
  EXPECT_TRUE(pair.roster.Add(pair.done));
  pair.roster.Close(pair.done);
  pair.roster.Close(pair.moves);
  EXPECT_TRUE(pair.roster.Closed(pair.moves) && !pair.roster.Closed(pair.done));
  EXPECT_TRUE(!pair.roster.Add(pair.moves));
  EXPECT_EQ(pair.roster.Take(), pair.done);
  EXPECT_TRUE(pair.roster.Add(pair.done));  // a `done` may call others
  pair.roster.Carried(pair.done, false);
  EXPECT_TRUE(!pair.roster.AllClosed());
  EXPECT_EQ(pair.roster.Take(), pair.done);
  pair.roster.Carried(pair.done, false);
  EXPECT_TRUE(pair.roster.AllClosed());
  EXPECT_TRUE(!pair.roster.Add(pair.done));
}

}  // namespace
}  // namespace tfring::roster_test
