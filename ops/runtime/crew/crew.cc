#include "ops/runtime/crew/crew.h"

#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/crew/roster.h"

namespace tfring {

struct Crew::Shared {
  struct Duty {
    Adds adds;
    Work work;
  };
  void Run();
  // Carries out a duty that was taken, and returns whether more of it is left. `lock` is of
  // `mutex`.
  bool Carry(size_t number, TimePoint until, std::unique_lock<std::mutex>* lock);

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::condition_variable closed;
  Roster roster;
  std::deque<Duty> duties;  // which stay where they are
  bool running = false;     // Start has started all threads
  bool ending = false;
  bool refused = false;  // Start has not
  int64_t wakeups = 0;
};

namespace {

// The crew in which this thread is about to look for work.
thread_local const void* soon_free_in = nullptr;

}  // namespace

void Crew::Shared::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    const size_t number = roster.Take();
    if (number == Roster::kNothing) {
      if (refused || (ending && roster.AllClosed())) break;
      roster.Sleeps();
      changed.wait(lock);
      roster.Woke();
      ++wakeups;
      continue;
    }
    Carry(number, kNever, &lock);
  }
  changed.notify_all();  // the others end as well
}

// A thread that runs a `done` may be away for long, so another one is woken for the other duties
// and for what the `done` adds. A guest at any other duty is soon back and wakes nobody.
bool Crew::Shared::Carry(size_t number, TimePoint until, std::unique_lock<std::mutex>* lock) {
  Duty& duty = duties[number];
  const bool last = duty.adds == Adds::kLast;
  const bool wakes = (until == kNever || !last) && roster.Wakes();
  lock->unlock();
  if (wakes) changed.notify_one();
  const void* const before = std::exchange(soon_free_in, last ? this : nullptr);
  const bool more = duty.work(until);
  soon_free_in = before;
  lock->lock();
  roster.Carried(number, more);
  if (roster.Closed(number)) closed.notify_all();
  return more;
}

Crew::Crew() : shared_(std::make_shared<Shared>()) {}

Crew::~Crew() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
}

Status Crew::Start(size_t threads) {
  Status started;
  for (size_t i = 0; i < threads && started.ok(); ++i) {
    threads_.push_back(std::make_unique<WorkerThread>());
    started = threads_.back()->Start("tfring-crew-" + std::to_string(i),
                                     [shared = shared_] { shared->Run(); });
  }
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->running = started.ok();
    shared_->refused = !started.ok();
  }
  if (!started.ok()) Join();
  return started;
}

size_t Crew::Open(Adds adds, Work work) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->duties.push_back({adds, std::move(work)});
  return shared_->roster.Open();
}

bool Crew::Add(size_t duty) {
  bool wakes = false;
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->running || !shared_->roster.Add(duty)) return false;
    wakes = soon_free_in != shared_.get() && shared_->roster.Wakes();
  }
  if (wakes) shared_->changed.notify_one();
  return true;
}

bool Crew::Close(size_t duty, TimePoint deadline) {
  const auto closed = [&] { return shared_->roster.Closed(duty); };
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->roster.Close(duty);
  if (shared_->ending) shared_->changed.notify_all();
  if (deadline != kNever) return shared_->closed.wait_until(lock, until, closed);
  shared_->closed.wait(lock, closed);
  return true;
}

bool Crew::Join(TimePoint deadline) {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
  bool all = true;
  for (auto& thread : threads_) all &= thread->Join(deadline);
  threads_.clear();
  return all;
}

Crew::Guest::Guest(Crew* crew) : crew_(soon_free_in == nullptr ? crew : nullptr) {
  if (crew_ != nullptr) soon_free_in = crew_->shared_.get();
}

Crew::Guest::~Guest() {
  if (crew_ != nullptr) soon_free_in = nullptr;
}

void Crew::Guest::CarryOut(TimePoint until) {
  if (crew_ == nullptr) return;
  const std::shared_ptr<Shared> shared = crew_->shared_;  // a `done` may end the crew
  std::fenv_t arithmetic;
  std::fegetenv(&arithmetic);
  std::fesetenv(FE_DFL_ENV);  // sums have the bits that they have on threads of the crew
  std::unique_lock<std::mutex> lock(shared->mutex);
  bool leaves = false;
  while (!leaves) {
    const size_t number = shared->roster.Take();
    if (number == Roster::kNothing) break;
    leaves = shared->Carry(number, until, &lock) || MonotonicNow() >= until;
  }
  const bool wakes = shared->roster.Wakes();
  lock.unlock();
  if (wakes) shared->changed.notify_one();
  std::fesetenv(&arithmetic);
}

int64_t Crew::wakeups() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->wakeups;
}

}  // namespace tfring
