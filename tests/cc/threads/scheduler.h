#ifndef TFRING_TESTS_CC_THREADS_SCHEDULER_H_
#define TFRING_TESTS_CC_THREADS_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "ops/runtime/base/types.h"

// Runs threads one at a time, in an order that a seed decides. A program that links scheduler.cc
// has its own pthread_mutex_lock, pthread_cond_wait, pthread_create, clock_gettime and so on: the
// code under test is the one that ships. Another thread may come next wherever a mutex is locked or
// unlocked, a condition variable is waited for or notified, or the clock is read. Not seen are
// reads and writes of memory in another order than the program has: the thread sanitizer looks for
// those. The clock is virtual, and leaps when all threads wait.
namespace tfring::threads {

// Runs `body`, and all threads that it starts, until they have ended. One run at a time.
void Run(uint64_t seed, const std::function<void()>& body);

// These are for the threads of a run.
// Prints `text` and what each thread waits for, and ends the process with 1.
[[noreturn]] void Fail(const std::string& text);
// Whether this thread holds any mutex.
bool HoldsAMutex();
TimePoint Now();
void Sleep(Duration duration);

// How often another thread came next, in all runs.
int64_t Switches();

}  // namespace tfring::threads

#endif  // TFRING_TESTS_CC_THREADS_SCHEDULER_H_
