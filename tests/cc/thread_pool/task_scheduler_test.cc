#include "ops/runtime/thread_pool/task_scheduler.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::task_scheduler_test {
namespace {

// A pool without threads: a step is what a thread of a ThreadPool does under its lock, and the seed
// says whose is next. Tasks are queues of pieces of work. Those with an even number add work to
// others at their end only; those with an odd number may do so at any time, and may last for ever.
class Play {
 public:
  Play(uint32_t seed, size_t tasks) : random_(seed), threads_(tasks), pieces_(tasks, 0) {
    for (size_t i = 0; i < tasks; ++i) scheduler_.Open();
    runners_.assign(tasks, 0);
    for (Thread& thread : threads_) Look(&thread);
  }

  void Step() {
    if (Below(4) == 0) return Add(Below(pieces_.size()), true);
    Thread& thread = threads_[Below(threads_.size())];
    if (thread.state == State::kAsleep && Below(8) == 0) thread.state = State::kWoken;
    if (thread.state != State::kWorks) return Advance(&thread);
    const bool at_its_end = thread.task % 2 == 0;
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
        if (all || thread.state != State::kWorks || thread.task % 2 == 0) Advance(&thread);
      }
    }
  }

  bool Waits(size_t task) const { return pieces_[task] > 0 && runners_[task] == 0; }
  int runners(size_t task) const { return runners_[task]; }
  int pieces(size_t task) const { return pieces_[task]; }
  int wakes() const { return wakes_; }
  int adds() const { return adds_; }

 private:
  enum class State { kWorks, kAsleep, kWoken };
  struct Thread {
    State state = State::kAsleep;
    size_t task = 0;
    bool more = false;
  };

  size_t Below(size_t limit) { return random_() % limit; }

  void Add(size_t task, bool may_wake) {
    ++adds_;
    ++pieces_[task];
    EXPECT_TRUE(scheduler_.Add(task));
    if (may_wake && scheduler_.Wakes()) Wake();
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
      scheduler_.Woke();
    } else {
      --runners_[thread->task];
      scheduler_.Ran(thread->task, thread->more);
    }
    Look(thread);
  }
  void Look(Thread* thread) {
    thread->task = scheduler_.Take();
    if (thread->task == TaskScheduler::kNothing) {
      scheduler_.Sleeps();
      thread->state = State::kAsleep;
      return;
    }
    thread->state = State::kWorks;
    EXPECT_EQ(++runners_[thread->task], 1);
    if (pieces_[thread->task] > 0) --pieces_[thread->task];
    thread->more = pieces_[thread->task] > 0;
    if (scheduler_.Wakes()) Wake();
  }

  std::mt19937 random_;
  TaskScheduler scheduler_;
  std::vector<Thread> threads_;
  std::vector<int> pieces_;  // that nobody has taken
  std::vector<int> runners_;
  int wakes_ = 0;
  int adds_ = 0;
};

TEST(NoWorkIsLeftLyingAndNoneIsDoneByTwo) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const size_t tasks = 1 + seed % 4;
    Play play(seed, tasks);
    for (int step = 0; step < 60; ++step) play.Step();
    play.Settle(/*all=*/false);
    for (size_t task = 0; task < tasks; ++task) {
      if (play.Waits(task))
        return testing::Fail(__FILE__, __LINE__, "seed " + std::to_string(seed));
    }
    play.Settle(/*all=*/true);
    for (size_t task = 0; task < tasks; ++task) {
      EXPECT_EQ(play.pieces(task), 0);
      EXPECT_EQ(play.runners(task), 0);
    }
    // Each piece of work wakes one thread at most for itself, and one for what it leaves.
    EXPECT_TRUE(play.wakes() <= 2 * play.adds());
  }
}

// `done` callbacks and collectives, as they are opened by the runtime, on two threads that sleep.
struct Pair {
  Pair() {
    EXPECT_EQ(scheduler.Open(), done);
    EXPECT_EQ(scheduler.Open(), moves);
    scheduler.Sleeps();
    scheduler.Sleeps();
  }
  TaskScheduler scheduler;
  const size_t done = 0;
  const size_t moves = 1;
};

TEST(WhoeverMovesRunsDoneItselfAndWakesNobody) {
  Pair pair;
  EXPECT_TRUE(pair.scheduler.Add(pair.moves));
  EXPECT_TRUE(pair.scheduler.Wakes());
  EXPECT_TRUE(!pair.scheduler.Wakes());  // one is enough
  pair.scheduler.Woke();
  EXPECT_EQ(pair.scheduler.Take(), pair.moves);
  EXPECT_TRUE(!pair.scheduler.Wakes());
  EXPECT_TRUE(pair.scheduler.Add(pair.done));  // at its end: it does not ask whom to wake
  pair.scheduler.Ran(pair.moves, false);
  EXPECT_EQ(pair.scheduler.Take(), pair.done);
  EXPECT_TRUE(!pair.scheduler.Wakes());
  pair.scheduler.Ran(pair.done, false);
  EXPECT_EQ(pair.scheduler.Take(), TaskScheduler::kNothing);
}

TEST(AClosedTaskTakesNoWorkAndOneWithWorkClosesLater) {
  Pair pair;
  EXPECT_TRUE(pair.scheduler.Add(pair.done));
  pair.scheduler.Close(pair.done);
  pair.scheduler.Close(pair.moves);
  EXPECT_TRUE(pair.scheduler.Closed(pair.moves) && !pair.scheduler.Closed(pair.done));
  EXPECT_TRUE(!pair.scheduler.Add(pair.moves));
  EXPECT_EQ(pair.scheduler.Take(), pair.done);
  EXPECT_TRUE(pair.scheduler.Add(pair.done));  // a `done` may call others
  pair.scheduler.Ran(pair.done, false);
  EXPECT_TRUE(!pair.scheduler.AllClosed());
  EXPECT_EQ(pair.scheduler.Take(), pair.done);
  pair.scheduler.Ran(pair.done, false);
  EXPECT_TRUE(pair.scheduler.AllClosed());
  EXPECT_TRUE(!pair.scheduler.Add(pair.done));
}

}  // namespace
}  // namespace tfring::task_scheduler_test
