#include "ops/runtime/thread_pool/thread_pool.h"

#include <atomic>
#include <cfenv>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "tests/cc/test.h"

namespace tfring::thread_pool_test {
namespace {

// A queue of functions as a task. `inside` is not guarded by anything but the pool: under the
// thread sanitizer that shows whether one turn happens before the next.
struct Functions {
  Functions(ThreadPool* pool, ThreadPool::Adds adds)
      : pool(pool), task(pool->Open(adds, [this](TimePoint) { return Next(); })) {}
  bool Post(std::function<void()> function) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(function));
    }
    return pool->Add(task);
  }
  // Until everything before has run.
  void Settle() {
    std::promise<void> ran_all;
    Post([&] { ran_all.set_value(); });
    ran_all.get_future().get();
  }
  bool Next() {
    std::function<void()> next;
    bool more = false;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (queue.empty()) return false;
      next = std::move(queue.front());
      queue.erase(queue.begin());
      more = !queue.empty();
    }
    ++inside;
    EXPECT_EQ(inside, 1);
    next();
    --inside;
    ++ran;
    return more;
  }

  ThreadPool* const pool;
  std::mutex mutex;  // guards queue
  std::vector<std::function<void()>> queue;
  int inside = 0;
  int ran = 0;
  const size_t task;
};

TEST(AllIsDoneOnceInOrderAndOneAtATime) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    ThreadPool pool;
    Functions dones(&pool, ThreadPool::Adds::kAnyTime);
    Functions moves(&pool, ThreadPool::Adds::kLast);
    ASSERT_TRUE(pool.Start(2).ok());
    constexpr int kPosters = 3;
    constexpr int kEach = 200;
    std::vector<int> seen(kPosters, 0);  // by poster: changed by dones only
    std::vector<std::thread> posters;
    for (int poster = 0; poster < kPosters; ++poster) {
      posters.emplace_back([&, poster] {
        std::mt19937 random(seed * kPosters + poster);
        for (int i = 0; i < kEach; ++i) {
          const auto done = [&seen, poster, i] { EXPECT_EQ(seen[poster]++, i); };
          std::optional<ThreadPool::CallerRuns> caller;
          if (seed % 3 == 0) caller.emplace(&pool);
          if (seed % 2 == 0) {
            moves.Post([&dones, done] { dones.Post(done); });
          } else {
            dones.Post(done);
          }
          if (caller) caller->RunTasks(MonotonicNow() + (i % 2 == 0 ? 0 : kSecond));
          if (random() % 16 == 0) std::this_thread::yield();
        }
      });
    }
    for (std::thread& poster : posters) poster.join();
    EXPECT_TRUE(pool.Close(moves.task));
    EXPECT_TRUE(pool.Close(dones.task));
    EXPECT_EQ(seen, std::vector<int>(kPosters, kEach));
    EXPECT_EQ(dones.ran, kPosters * kEach);
    EXPECT_TRUE(pool.Join());
  }
}

// A caller runs what it has added, and to what follows from that; without it nothing runs here.
// Until the threads of the pool sleep, one of them may be faster.
TEST(ACallerRunsWhatItHasAdded) {
  ThreadPool pool;
  Functions dones(&pool, ThreadPool::Adds::kAnyTime);
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  dones.Settle();
  moves.Settle();
  const std::thread::id self = std::this_thread::get_id();
  int in_a_row = 0;
  int64_t wakeups = 0;
  for (int i = 0; i < 5000 && in_a_row < 100; ++i) {
    if (in_a_row == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      wakeups = pool.wakeups();
    }
    std::vector<std::thread::id> by;
    std::promise<void> both;
    ThreadPool::CallerRuns caller(&pool);
    moves.Post([&] {
      by.push_back(std::this_thread::get_id());
      dones.Post([&] {
        by.push_back(std::this_thread::get_id());
        both.set_value();
      });
    });
    caller.RunTasks(kNever - 1);
    both.get_future().get();
    const bool alone = by == std::vector<std::thread::id>(2, self) && pool.wakeups() == wakeups;
    in_a_row = alone ? in_a_row + 1 : 0;
  }
  EXPECT_EQ(in_a_row, 100);
  EXPECT_TRUE(pool.Close(moves.task) && pool.Close(dones.task) && pool.Join());
}

TEST(ASecondCallerRunsOnAThreadDoesNothing) {
  ThreadPool pool;
  const std::thread::id self = std::this_thread::get_id();
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  {
    ThreadPool::CallerRuns caller(&pool);
    ThreadPool::CallerRuns second(&pool);
    std::promise<std::thread::id> by;
    std::atomic<bool> second_is_at_it{true};
    moves.Post([&] {
      EXPECT_TRUE(!(second_is_at_it && std::this_thread::get_id() == self));
      by.set_value(std::this_thread::get_id());
    });
    second.RunTasks(MonotonicNow());
    second_is_at_it = false;
    caller.RunTasks(MonotonicNow());
    by.get_future().get();
  }
  EXPECT_TRUE(pool.Close(moves.task) && pool.Join());
}

// Where a thread of the pool was not faster.
TEST(WhatACallerLeavesThePoolEnds) {
  const std::vector<TimePoint> expected = {1, kNever};
  std::vector<TimePoint> limits;
  for (int attempt = 0; attempt < 5000 && limits != expected; ++attempt) {
    limits.clear();
    ThreadPool pool;
    std::promise<void> ended;
    const size_t task = pool.Open(ThreadPool::Adds::kLast, [&](TimePoint until) {
      limits.push_back(until);
      if (until == kNever) ended.set_value();
      return until != kNever;
    });
    ASSERT_TRUE(pool.Start(2).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    {
      ThreadPool::CallerRuns caller(&pool);
      EXPECT_TRUE(pool.Add(task));
      caller.RunTasks(1);
    }
    ended.get_future().get();
    EXPECT_TRUE(pool.Close(task) && pool.Join());
  }
  EXPECT_EQ(limits, expected);
}

// The pool has no thread, so that the caller has to run the task.
TEST(ACallerAddsUpAsThePoolDoes) {
  ThreadPool pool;
  int rounding = -1;
  const size_t task = pool.Open(ThreadPool::Adds::kLast, [&](TimePoint) {
    rounding = std::fegetround();
    return false;
  });
  ASSERT_TRUE(pool.Start(0).ok());
  std::fesetround(FE_UPWARD);
  ThreadPool::CallerRuns caller(&pool);
  EXPECT_TRUE(pool.Add(task));
  caller.RunTasks(MonotonicNow());
  EXPECT_EQ(rounding, FE_TONEAREST);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(pool.Close(task) && pool.Join());
}

// What a collective leaves to be done wakes nobody: it is not begun before the collective has
// ended.
TEST(WhoMovesIsWhoRunsDone) {
  ThreadPool pool;
  Functions dones(&pool, ThreadPool::Adds::kAnyTime);
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  bool left_alone = false;
  // Again if the other thread was just looking for work.
  for (int attempt = 0; attempt < 200 && !left_alone; ++attempt) {
    std::atomic<bool> begun{false};
    std::promise<void> ended;
    moves.Post([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      dones.Post([&] {
        begun = true;
        ended.set_value();
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      left_alone = !begun;
    });
    ended.get_future().get();
    moves.Settle();
  }
  EXPECT_TRUE(left_alone);
  EXPECT_TRUE(pool.Close(moves.task) && pool.Close(dones.task) && pool.Join());
}

TEST(ADoneMayWaitForACollective) {
  ThreadPool pool;
  Functions dones(&pool, ThreadPool::Adds::kAnyTime);
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  dones.Post([&] {
    std::promise<void> moved;
    moves.Post([&] { moved.set_value(); });
    moved.get_future().get();
  });
  EXPECT_TRUE(pool.Close(dones.task) && pool.Close(moves.task) && pool.Join());
}

TEST(ADoneThatLastsHoldsUpNoCollective) {
  ThreadPool pool;
  Functions dones(&pool, ThreadPool::Adds::kAnyTime);
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  std::promise<void> let_go;
  std::promise<void> began;
  moves.Post([&] {
    dones.Post([&] {
      began.set_value();
      let_go.get_future().wait();
    });
  });
  began.get_future().wait();
  for (int i = 0; i < 10; ++i) {
    std::promise<void> moved;
    moves.Post([&] {
      dones.Post([] {});
      moved.set_value();
    });
    moved.get_future().wait();
  }
  EXPECT_EQ(dones.ran, 0);  // in their order
  EXPECT_TRUE(pool.Close(moves.task));
  EXPECT_TRUE(!pool.Close(dones.task, MonotonicNow() + kSecond / 50));
  EXPECT_TRUE(dones.Post([] {}));  // until it has returned
  let_go.set_value();
  EXPECT_TRUE(pool.Close(dones.task));
  EXPECT_EQ(dones.ran, 12);
  EXPECT_TRUE(!dones.Post([] {}));
  EXPECT_TRUE(pool.Join());
}

// One that was there before the `done` began.
TEST(ADoneOnACallerThatLastsHoldsUpNoCollective) {
  ThreadPool pool;
  Functions dones(&pool, ThreadPool::Adds::kAnyTime);
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  const std::thread::id self = std::this_thread::get_id();
  bool on_caller = false;
  for (int attempt = 0; attempt < 5000 && !on_caller; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::promise<void> moved;
    std::promise<void> ended;
    ThreadPool::CallerRuns caller(&pool);
    moves.Post([&] { moved.set_value(); });
    dones.Post([&] {
      on_caller = std::this_thread::get_id() == self;
      moved.get_future().wait();
      ended.set_value();
    });
    caller.RunTasks(kNever - 1);
    ended.get_future().wait();
  }
  EXPECT_TRUE(on_caller);
  EXPECT_TRUE(pool.Close(dones.task) && pool.Close(moves.task) && pool.Join());
}

// When its time is over it leaves to the pool what it has not begun.
TEST(ACallerBeginsNothingAfterItsTime) {
  ThreadPool pool;
  Functions dones(&pool, ThreadPool::Adds::kAnyTime);
  Functions moves(&pool, ThreadPool::Adds::kLast);
  ASSERT_TRUE(pool.Start(2).ok());
  const std::thread::id self = std::this_thread::get_id();
  bool moved_here = false;
  for (int attempt = 0; attempt < 5000 && !moved_here; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::promise<std::thread::id> done;
    ThreadPool::CallerRuns caller(&pool);
    moves.Post([&] {
      moved_here = std::this_thread::get_id() == self;
      dones.Post([&] { done.set_value(std::this_thread::get_id()); });
    });
    caller.RunTasks(1);
    EXPECT_TRUE(done.get_future().get() != self);
  }
  EXPECT_TRUE(moved_here);
  EXPECT_TRUE(pool.Close(moves.task) && pool.Close(dones.task) && pool.Join());
}

TEST(AThreadThatDoesNotReturnOutlivesItsPool) {
  auto let_go = std::make_shared<std::promise<void>>();
  auto gone = std::make_shared<std::promise<void>>();
  std::shared_future<void> held = let_go->get_future().share();
  std::future<void> ended = gone->get_future();
  {
    ThreadPool pool;
    const size_t task = pool.Open(ThreadPool::Adds::kAnyTime, [held, gone](TimePoint) {
      held.wait();
      gone->set_value();
      return false;
    });
    ASSERT_TRUE(pool.Start(2).ok());
    EXPECT_TRUE(pool.Add(task));
    EXPECT_TRUE(!pool.Close(task, MonotonicNow() + kSecond / 50));
    EXPECT_TRUE(!pool.Join(MonotonicNow()));
  }
  let_go->set_value();
  ended.wait();
}

TEST(WithoutThreadsNothingIsTaken) {
  ThreadPool pool;
  const size_t task = pool.Open(ThreadPool::Adds::kAnyTime, [](TimePoint) { return false; });
  EXPECT_TRUE(!pool.Add(task));
  EXPECT_TRUE(pool.Close(task));
  EXPECT_TRUE(pool.Join());
}

}  // namespace
}  // namespace tfring::thread_pool_test
