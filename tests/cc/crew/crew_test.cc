#include "ops/runtime/crew/crew.h"

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

namespace tfring::crew_test {
namespace {

// A queue of functions as a duty. `inside` is not guarded by anything but the crew: under the
// thread sanitizer that shows whether one turn happens before the next.
struct Tasks {
  Tasks(Crew* crew, Crew::Adds adds)
      : crew(crew), duty(crew->Open(adds, [this](TimePoint) { return Next(); })) {}
  bool Post(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(task));
    }
    return crew->Add(duty);
  }
  // Until everything before has run.
  void Settle() {
    std::promise<void> ran_all;
    Post([&] { ran_all.set_value(); });
    ran_all.get_future().get();
  }
  bool Next() {
    std::function<void()> task;
    bool more = false;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (queue.empty()) return false;
      task = std::move(queue.front());
      queue.erase(queue.begin());
      more = !queue.empty();
    }
    ++inside;
    EXPECT_EQ(inside, 1);
    task();
    --inside;
    ++ran;
    return more;
  }

  Crew* const crew;
  std::mutex mutex;  // guards queue
  std::vector<std::function<void()>> queue;
  int inside = 0;
  int ran = 0;
  const size_t duty;
};

TEST(AllIsDoneOnceInOrderAndOneAtATime) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    Crew crew;
    Tasks dones(&crew, Crew::Adds::kAnyTime);
    Tasks moves(&crew, Crew::Adds::kLast);
    ASSERT_TRUE(crew.Start(2).ok());
    constexpr int kPosters = 3;
    constexpr int kEach = 200;
    std::vector<int> seen(kPosters, 0);  // by poster: changed by dones only
    std::vector<std::thread> posters;
    for (int poster = 0; poster < kPosters; ++poster) {
      posters.emplace_back([&, poster] {
        std::mt19937 random(seed * kPosters + poster);
        for (int i = 0; i < kEach; ++i) {
          const auto done = [&seen, poster, i] { EXPECT_EQ(seen[poster]++, i); };
          std::optional<Crew::Guest> guest;
          if (seed % 3 == 0) guest.emplace(&crew);
          if (seed % 2 == 0) {
            moves.Post([&dones, done] { dones.Post(done); });
          } else {
            dones.Post(done);
          }
          if (guest) guest->CarryOut(MonotonicNow() + (i % 2 == 0 ? 0 : kSecond));
          if (random() % 16 == 0) std::this_thread::yield();
        }
      });
    }
    for (std::thread& poster : posters) poster.join();
    EXPECT_TRUE(crew.Close(moves.duty));
    EXPECT_TRUE(crew.Close(dones.duty));
    EXPECT_EQ(seen, std::vector<int>(kPosters, kEach));
    EXPECT_EQ(dones.ran, kPosters * kEach);
    EXPECT_TRUE(crew.Join());
  }
}

// A guest sees to what it has added, and to what follows from that; without it nothing runs here.
// Until the threads of the crew sleep, one of them may be faster.
TEST(AGuestCarriesOutWhatItHasAdded) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
  dones.Settle();
  moves.Settle();
  const std::thread::id self = std::this_thread::get_id();
  int in_a_row = 0;
  int64_t wakeups = 0;
  for (int i = 0; i < 5000 && in_a_row < 100; ++i) {
    if (in_a_row == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      wakeups = crew.wakeups();
    }
    std::vector<std::thread::id> by;
    std::promise<void> both;
    Crew::Guest guest(&crew);
    moves.Post([&] {
      by.push_back(std::this_thread::get_id());
      dones.Post([&] {
        by.push_back(std::this_thread::get_id());
        both.set_value();
      });
    });
    guest.CarryOut(kNever - 1);
    both.get_future().get();
    const bool alone = by == std::vector<std::thread::id>(2, self) && crew.wakeups() == wakeups;
    in_a_row = alone ? in_a_row + 1 : 0;
  }
  EXPECT_EQ(in_a_row, 100);
  EXPECT_TRUE(crew.Close(moves.duty) && crew.Close(dones.duty) && crew.Join());
}

TEST(ASecondGuestOnAThreadDoesNothing) {
  Crew crew;
  const std::thread::id self = std::this_thread::get_id();
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
  {
    Crew::Guest guest(&crew);
    Crew::Guest second(&crew);
    std::promise<std::thread::id> by;
    std::atomic<bool> second_is_at_it{true};
    moves.Post([&] {
      EXPECT_TRUE(!(second_is_at_it && std::this_thread::get_id() == self));
      by.set_value(std::this_thread::get_id());
    });
    second.CarryOut(MonotonicNow());
    second_is_at_it = false;
    guest.CarryOut(MonotonicNow());
    by.get_future().get();
  }
  EXPECT_TRUE(crew.Close(moves.duty) && crew.Join());
}

// Where a thread of the crew was not faster.
TEST(WhatAGuestLeavesTheCrewEnds) {
  const std::vector<TimePoint> expected = {1, kNever};
  std::vector<TimePoint> limits;
  for (int attempt = 0; attempt < 5000 && limits != expected; ++attempt) {
    limits.clear();
    Crew crew;
    std::promise<void> ended;
    const size_t duty = crew.Open(Crew::Adds::kLast, [&](TimePoint until) {
      limits.push_back(until);
      if (until == kNever) ended.set_value();
      return until != kNever;
    });
    ASSERT_TRUE(crew.Start(2).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    {
      Crew::Guest guest(&crew);
      EXPECT_TRUE(crew.Add(duty));
      guest.CarryOut(1);
    }
    ended.get_future().get();
    EXPECT_TRUE(crew.Close(duty) && crew.Join());
  }
  EXPECT_EQ(limits, expected);
}

TEST(AGuestAddsUpAsTheCrewDoes) {
  Crew crew;
  int rounding = -1;
  const size_t duty = crew.Open(Crew::Adds::kLast, [&](TimePoint) {
    rounding = std::fegetround();
    return false;
  });
  ASSERT_TRUE(crew.Start(2).ok());
  std::fesetround(FE_UPWARD);
  Crew::Guest guest(&crew);
  EXPECT_TRUE(crew.Add(duty));
  guest.CarryOut(MonotonicNow());
  EXPECT_EQ(rounding, FE_TONEAREST);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(crew.Close(duty) && crew.Join());
}

// What a collective leaves to be done wakes nobody: it is not begun before the collective has
// ended.
TEST(WhoMovesIsWhoRunsDone) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
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
  EXPECT_TRUE(crew.Close(moves.duty) && crew.Close(dones.duty) && crew.Join());
}

TEST(ADoneMayWaitForACollective) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
  dones.Post([&] {
    std::promise<void> moved;
    moves.Post([&] { moved.set_value(); });
    moved.get_future().get();
  });
  EXPECT_TRUE(crew.Close(dones.duty) && crew.Close(moves.duty) && crew.Join());
}

TEST(ADoneThatLastsHoldsUpNoCollective) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
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
  EXPECT_TRUE(crew.Close(moves.duty));
  EXPECT_TRUE(!crew.Close(dones.duty, MonotonicNow() + kSecond / 50));
  EXPECT_TRUE(dones.Post([] {}));  // until it has returned
  let_go.set_value();
  EXPECT_TRUE(crew.Close(dones.duty));
  EXPECT_EQ(dones.ran, 12);
  EXPECT_TRUE(!dones.Post([] {}));
  EXPECT_TRUE(crew.Join());
}

// Posts `outer` as a `done` for a guest to carry out, again until the guest was faster than the
// threads of the crew.
void RunOnAGuest(Crew* crew, Tasks* dones, const std::function<void()>& outer) {
  const std::thread::id self = std::this_thread::get_id();
  bool on_guest = false;
  for (int attempt = 0; attempt < 5000 && !on_guest; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the others sleep
    std::promise<void> ran;
    Crew::Guest guest(crew);
    dones->Post([&] {
      on_guest = std::this_thread::get_id() == self;
      if (on_guest) outer();
      ran.set_value();
    });
    guest.CarryOut(kNever - 1);
    ran.get_future().get();
  }
  EXPECT_TRUE(on_guest);
}

TEST(ADoneOnAGuestMayWaitForACollective) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
  RunOnAGuest(&crew, &dones, [&] {
    std::promise<void> moved;
    moves.Post([&] { moved.set_value(); });
    moved.get_future().get();
  });
  EXPECT_TRUE(crew.Close(dones.duty) && crew.Close(moves.duty) && crew.Join());
}

// One that was there before the `done` began.
TEST(ADoneOnAGuestThatLastsHoldsUpNoCollective) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
  const std::thread::id self = std::this_thread::get_id();
  bool on_guest = false;
  for (int attempt = 0; attempt < 5000 && !on_guest; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::promise<void> moved;
    std::promise<void> ended;
    Crew::Guest guest(&crew);
    moves.Post([&] { moved.set_value(); });
    dones.Post([&] {
      on_guest = std::this_thread::get_id() == self;
      moved.get_future().wait();
      ended.set_value();
    });
    guest.CarryOut(kNever - 1);
    ended.get_future().wait();
  }
  EXPECT_TRUE(on_guest);
  EXPECT_TRUE(crew.Close(dones.duty) && crew.Close(moves.duty) && crew.Join());
}

// When its time is over it leaves to the crew what it has not begun.
TEST(AGuestBeginsNothingAfterItsTime) {
  Crew crew;
  Tasks dones(&crew, Crew::Adds::kAnyTime);
  Tasks moves(&crew, Crew::Adds::kLast);
  ASSERT_TRUE(crew.Start(2).ok());
  const std::thread::id self = std::this_thread::get_id();
  bool moved_here = false;
  for (int attempt = 0; attempt < 5000 && !moved_here; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::promise<std::thread::id> done;
    Crew::Guest guest(&crew);
    moves.Post([&] {
      moved_here = std::this_thread::get_id() == self;
      dones.Post([&] { done.set_value(std::this_thread::get_id()); });
    });
    guest.CarryOut(1);
    EXPECT_TRUE(done.get_future().get() != self);
  }
  EXPECT_TRUE(moved_here);
  EXPECT_TRUE(crew.Close(moves.duty) && crew.Close(dones.duty) && crew.Join());
}

TEST(AThreadThatDoesNotReturnOutlivesItsCrew) {
  auto let_go = std::make_shared<std::promise<void>>();
  auto gone = std::make_shared<std::promise<void>>();
  std::shared_future<void> held = let_go->get_future().share();
  std::future<void> ended = gone->get_future();
  {
    Crew crew;
    const size_t duty = crew.Open(Crew::Adds::kAnyTime, [held, gone](TimePoint) {
      held.wait();
      gone->set_value();
      return false;
    });
    ASSERT_TRUE(crew.Start(2).ok());
    EXPECT_TRUE(crew.Add(duty));
    EXPECT_TRUE(!crew.Close(duty, MonotonicNow() + kSecond / 50));
    EXPECT_TRUE(!crew.Join(MonotonicNow()));
  }
  let_go->set_value();
  ended.wait();
}

TEST(WithoutThreadsNothingIsTaken) {
  Crew crew;
  const size_t duty = crew.Open(Crew::Adds::kAnyTime, [](TimePoint) { return false; });
  EXPECT_TRUE(!crew.Add(duty));
  EXPECT_TRUE(crew.Close(duty));
  EXPECT_TRUE(crew.Join());
}

}  // namespace
}  // namespace tfring::crew_test
