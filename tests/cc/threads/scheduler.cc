#include "tests/cc/threads/scheduler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "ops/sim/random.h"

#define TFRING_REPLACES extern "C" __attribute__((visibility("default")))

namespace tfring::threads {
namespace {

// No run of a few hundred rounds lasts as long.
constexpr Duration kLimit = 600 * kSecond;

// The function that a replaced one hides.
template <typename Function>
Function* Original(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

enum class Waits : uint8_t { kNothing, kMutex, kCondition, kThread, kTime, kEnded };

struct Thread {
  pthread_t handle{};
  sem_t turn;
  Waits waits = Waits::kNothing;
  const void* object = nullptr;  // which mutex, condition variable or Thread
  TimePoint deadline = kNever;
  bool timed_out = false;
  std::vector<const void*> holds;
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
};

thread_local Thread* self = nullptr;  // null: this thread is in no run
int64_t switches = 0;

// One at a time uses it: the thread whose turn it is. Semaphores hand the turn on.
class Schedule {
 public:
  explicit Schedule(uint64_t seed)
      : random_(seed), stay_percent_(random_.Pick(std::vector<int>{50, 80, 95})) {
    sem_init(&over_, 0, 0);
  }

  Thread* Add() {
    threads_.push_back(std::make_unique<Thread>());
    sem_init(&threads_.back()->turn, 0, 0);
    return threads_.back().get();
  }

  // The first thread begins; returns when the last has ended.
  void Begin(Thread* first) {
    sem_post(&first->turn);
    while (sem_wait(&over_) != 0) continue;
  }

  TimePoint Now() const { return now_; }
  void Tick() { now_ += random_.Below(400); }

  void Yield() {
    Tick();
    if (!random_.Percent(stay_percent_)) Next();
  }

  // Until it is woken or `deadline`; false in that case.
  bool Wait(Waits what, const void* object, TimePoint deadline) {
    self->waits = what;
    self->object = object;
    self->deadline = deadline;
    self->timed_out = false;
    Next();
    return !self->timed_out;
  }

  void Wake(Waits what, const void* object, bool all) {
    std::vector<Thread*> found;
    for (const auto& thread : threads_) {
      if (thread->waits == what && thread->object == object) found.push_back(thread.get());
    }
    if (found.empty()) return;
    if (!all) found = {random_.Pick(found)};
    for (Thread* thread : found) thread->waits = Waits::kNothing;
  }

  bool TryLock(const void* mutex) {
    if (!owners_.emplace(mutex, self).second) return false;
    self->holds.push_back(mutex);
    return true;
  }
  void Lock(const void* mutex) {
    while (!TryLock(mutex)) Wait(Waits::kMutex, mutex, kNever);
  }
  void Unlock(const void* mutex) {
    const auto owner = owners_.find(mutex);
    if (owner == owners_.end() || owner->second != self) Fail("unlocks what it does not hold");
    owners_.erase(owner);
    self->holds.erase(std::find(self->holds.begin(), self->holds.end(), mutex));
    Wake(Waits::kMutex, mutex, true);
  }

  int WaitFor(const void* condition, const void* mutex, TimePoint deadline) {
    Unlock(mutex);
    // A condition variable may also wake for no reason.
    if (random_.Percent(2)) deadline = std::min(deadline, now_ + random_.Below(kMillisecond));
    const TimePoint asked = deadline;
    const bool woken = Wait(Waits::kCondition, condition, deadline);
    Lock(mutex);
    return woken || asked != deadline ? 0 : ETIMEDOUT;
  }

  void End() {
    if (!self->holds.empty()) Fail("a thread ends with a mutex");
    self->waits = Waits::kEnded;
    Wake(Waits::kThread, self, true);
    if (std::all_of(threads_.begin(), threads_.end(),
                    [](const auto& thread) { return thread->waits == Waits::kEnded; })) {
      sem_post(&over_);
      return;
    }
    sem_post(&Choose()->turn);
  }

  Thread* Find(pthread_t handle) {
    // The system gives the handle of a detached thread that has ended to another one.
    const auto found = std::find_if(threads_.rbegin(), threads_.rend(), [&](const auto& thread) {
      return pthread_equal(thread->handle, handle) != 0;
    });
    return found == threads_.rend() ? nullptr : found->get();
  }

  std::string Text() const {
    static constexpr const char* kNames[] = {
        "could go on", "waits for a mutex", "waits to be woken", "waits for an end",
        "sleeps",      "has ended"};
    std::string text;
    for (const auto& thread : threads_) {
      if (thread->waits == Waits::kEnded) continue;
      char name[32] = "";
      pthread_getname_np(thread->handle, name, sizeof name);
      text += std::string("  ") + name + (thread.get() == self ? " (this one) " : " ") +
              kNames[static_cast<size_t>(thread->waits)] +
              (thread->holds.empty() ? "" : ", holds a mutex") + "\n";
    }
    return text;
  }

 private:
  // Another thread, or the same, goes on.
  void Next() {
    Thread* const next = Choose();
    if (next == self) return;
    ++switches;
    sem_post(&next->turn);
    while (sem_wait(&self->turn) != 0) continue;
  }

  Thread* Choose() {
    for (;;) {
      TimePoint first = kNever;
      std::vector<Thread*> ready;
      for (const auto& thread : threads_) {
        const bool timed = thread->waits == Waits::kCondition || thread->waits == Waits::kTime;
        if (timed && thread->deadline <= now_) {
          thread->waits = Waits::kNothing;
          thread->timed_out = true;
        }
        if (thread->waits == Waits::kNothing) ready.push_back(thread.get());
        if (timed) first = std::min(first, thread->deadline);
      }
      if (!ready.empty()) return random_.Pick(ready);
      if (first == kNever) Fail("all threads wait for ever");
      if (first > kLimit) Fail("some threads wait for ever, others look now and then");
      now_ = std::max(now_, first);
    }
  }

  sim::Random random_;
  const int stay_percent_;
  TimePoint now_ = kSecond;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::map<const void*, Thread*> owners_;  // of mutexes
  sem_t over_;
};

Schedule* schedule = nullptr;
uint64_t current_seed = 0;

void* Trampoline(void* argument) {
  self = static_cast<Thread*>(argument);
  while (sem_wait(&self->turn) != 0) continue;
  void* const result = self->body(self->argument);
  schedule->End();
  self = nullptr;
  return result;
}

int StartThread(pthread_t* handle, const pthread_attr_t* attributes, Thread* thread) {
  static auto* const original = Original<decltype(pthread_create)>("pthread_create");
  const int error = original(handle, attributes, Trampoline, thread);
  if (error != 0) std::abort();
  thread->handle = *handle;
  return error;
}

int JoinThread(pthread_t handle, void** result) {
  static auto* const original = Original<decltype(pthread_join)>("pthread_join");
  return original(handle, result);
}

TimePoint FromSpec(const timespec* spec) {
  return static_cast<TimePoint>(spec->tv_sec) * kSecond + spec->tv_nsec;
}

void* RunBody(void* body) {
  (*static_cast<const std::function<void()>*>(body))();
  return nullptr;
}

}  // namespace

void Run(uint64_t seed, const std::function<void()>& body) {
  Schedule of_this_run(seed);
  schedule = &of_this_run;
  current_seed = seed;
  Thread* const first = of_this_run.Add();
  first->body = RunBody;
  first->argument = const_cast<std::function<void()>*>(&body);
  pthread_t handle{};
  StartThread(&handle, nullptr, first);
  of_this_run.Begin(first);
  JoinThread(handle, nullptr);
  schedule = nullptr;
}

void Fail(const std::string& text) {
  std::printf(
      "seed %llu FAILED after %.6f s: %s\n%s", static_cast<unsigned long long>(current_seed),
      static_cast<double>(schedule->Now()) / kSecond, text.c_str(), schedule->Text().c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

bool HoldsAMutex() { return !self->holds.empty(); }

TimePoint Now() { return schedule->Now(); }

void Sleep(Duration duration) { schedule->Wait(Waits::kTime, nullptr, schedule->Now() + duration); }

int64_t Switches() { return switches; }

}  // namespace tfring::threads

using tfring::threads::Original;
using tfring::threads::schedule;
using tfring::threads::self;
using tfring::threads::Waits;

TFRING_REPLACES int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const original = Original<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
  if (self == nullptr) return original(mutex);
  schedule->Yield();
  schedule->Lock(mutex);
  return 0;
}

TFRING_REPLACES int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static auto* const original = Original<decltype(pthread_mutex_trylock)>("pthread_mutex_trylock");
  if (self == nullptr) return original(mutex);
  schedule->Yield();
  return schedule->TryLock(mutex) ? 0 : EBUSY;
}

TFRING_REPLACES int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const original = Original<decltype(pthread_mutex_unlock)>("pthread_mutex_unlock");
  if (self == nullptr) return original(mutex);
  schedule->Unlock(mutex);
  schedule->Yield();
  return 0;
}

TFRING_REPLACES int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static auto* const original = Original<decltype(pthread_cond_wait)>("pthread_cond_wait");
  if (self == nullptr) return original(condition, mutex);
  return schedule->WaitFor(condition, mutex, tfring::kNever);
}

TFRING_REPLACES int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                           clockid_t clock, const timespec* deadline) {
  static auto* const original =
      Original<decltype(pthread_cond_clockwait)>("pthread_cond_clockwait");
  if (self == nullptr) return original(condition, mutex, clock, deadline);
  if (clock != CLOCK_MONOTONIC) tfring::threads::Fail("waits by a clock that is not virtual");
  return schedule->WaitFor(condition, mutex, tfring::threads::FromSpec(deadline));
}

TFRING_REPLACES int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static auto* const original = Original<decltype(pthread_cond_signal)>("pthread_cond_signal");
  if (self == nullptr) return original(condition);
  schedule->Yield();
  schedule->Wake(Waits::kCondition, condition, false);
  return 0;
}

TFRING_REPLACES int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static auto* const original =
      Original<decltype(pthread_cond_broadcast)>("pthread_cond_broadcast");
  if (self == nullptr) return original(condition);
  schedule->Yield();
  schedule->Wake(Waits::kCondition, condition, true);
  return 0;
}

TFRING_REPLACES int pthread_create(pthread_t* handle, const pthread_attr_t* attributes,
                                   void* (*body)(void*), void* argument) noexcept {
  static auto* const original = Original<decltype(pthread_create)>("pthread_create");
  if (self == nullptr) return original(handle, attributes, body, argument);
  tfring::threads::Thread* const thread = schedule->Add();
  thread->body = body;
  thread->argument = argument;
  return tfring::threads::StartThread(handle, attributes, thread);
}

TFRING_REPLACES int pthread_join(pthread_t handle, void** result) {
  if (self == nullptr) return tfring::threads::JoinThread(handle, result);
  tfring::threads::Thread* const thread = schedule->Find(handle);
  if (thread->waits != Waits::kEnded) schedule->Wait(Waits::kThread, thread, tfring::kNever);
  return tfring::threads::JoinThread(handle, result);
}

TFRING_REPLACES int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static auto* const original = Original<decltype(clock_gettime)>("clock_gettime");
  if (self == nullptr || clock != CLOCK_MONOTONIC) return original(clock, now);
  schedule->Yield();
  now->tv_sec = schedule->Now() / tfring::kSecond;
  now->tv_nsec = schedule->Now() % tfring::kSecond;
  return 0;
}
