#ifndef TFRING_TESTS_CC_THREADS_JOB_H_
#define TFRING_TESTS_CC_THREADS_JOB_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/process/rank_runtime_parts.h"
#include "ops/sim/random.h"
#include "tests/cc/threads/meetings.h"
#include "tests/cc/transport/in_process.h"

namespace tfring::threads {

enum class Fault : uint8_t { kNone, kDeath, kShutdown, kAbandon, kCancel };

struct Options {
  int ranks = 3;
  uint64_t seed = 1;
  Fault fault = Fault::kNone;
};

// Of all runs.
struct Report {
  int64_t calls = 0;
  int64_t failed_calls = 0;
  int64_t faults = 0;
  int64_t in_lock = 0;     // of the faults
  int64_t locks = 0;       // of rank 0
  int64_t rounds = 0;      // of these
  int64_t fused = 0;       // batches of locks that had several calls
  int64_t by_callers = 0;  // callbacks on threads that had made a call
};

// A job whose ranks are RankRuntimes in one process, each with its control thread, its pool of two
// and one to three threads that make the same calls again and again. Run by threads::Run; a rule
// that is broken ends the process.
class Job {
 public:
  Job(const Options& options, Report* report);
  void Run();

 private:
  struct Call {
    std::string name;
    std::vector<float> input;
    std::vector<float> output;
    Status status;
    int ends = 0;
  };
  struct RankState {
    std::mutex mutex;  // guards all below
    std::condition_variable changed;
    std::vector<std::unique_ptr<Call>> calls;
    int users = 0;  // that have not ended
    bool failed = false;
    int in_done = 0;  // `done` callbacks that are running
    bool leaves = false;
    int at_step = 0;  // threads that have come to the end of a step
    int64_t steps = 0;
    std::unique_ptr<RankRuntime> runtime;
  };
  // What all threads of this number do in one step, on all ranks.
  enum class Step : uint8_t { kEqual, kOther, kWrong, kLate };

  Config RandomConfig();
  void Start();
  void Process(Rank rank);
  void Leave(Rank rank);
  void User(Rank rank, int user);
  bool OneStep(Rank rank, int user, int number, sim::Random* random);
  Call* Submit(Rank rank, const std::string& name, size_t elements, float value,
               const std::function<void()>& then = nullptr);
  bool WaitFor(Rank rank, Call* call, float expected, bool may_fail = false);
  void Ended(Rank rank, Call* call, const Status& status, std::thread::id caller,
             const std::function<void()>& then);
  bool EndStep(Rank rank);
  void Inject();
  void CheckCalls();
  // Whether no rank waits for another for longer than the others' threads take.
  bool IsPrompt() const { return in_steps_ && !late_ && !faulted_; }

  const Options options_;
  Report* const report_;
  sim::Random random_;
  int users_ = 1;
  int tensors_ = 1;
  bool in_steps_ = true;     // the threads of a rank wait for each other at the end of a step
  int one_by_one_from_ = 0;  // from this step on a call waits for the one before
  bool chained_ = false;     // a `done` makes the next call
  int pauses_percent_ = 0;   // of the calls have a pause before them
  bool late_ = false;        // a rank may be late by more than a lock waits
  std::vector<Step> steps_;
  Meetings meetings_;
  std::vector<ControlTransport*> controls_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::atomic<bool> faulted_{false};
};

}  // namespace tfring::threads

#endif  // TFRING_TESTS_CC_THREADS_JOB_H_
