#ifndef TFRING_OPS_SIM_MEMBERSHIP_OPTIONS_H_
#define TFRING_OPS_SIM_MEMBERSHIP_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/membership/coordinator.h"
#include "ops/runtime/membership/worker.h"

namespace tfring::sim {

struct JobOptions {
  uint64_t seed = 1;
  int workers = 0;  // 0: 4 to 64, by the seed
  int faults = -1;  // -1: 0 to 6, by the seed
  bool trace = false;
};

enum class JobFault : uint8_t {
  kKill,             // one member
  kKillFirst,        // rank 0
  kKillThree,        // within 50 ms
  kKillInPhase,      // the next worker that enters a given state
  kKillInStep,       // rank 0, when only some members have the result of a step
  kException,        // a member ends with an exception
  kStop,             // SIGSTOP, later SIGCONT
  kHold,             // a call of a member keeps Python's lock; its runtime continues
  kPauseHost,        // a host stops with its agent and all processes, and resumes later
  kStopStore,        // the coordinator stops, and resumes later
  kCutPair,          // two members cannot reach each other
  kCutStore,         // a member cannot reach the coordinator
  kStoreAway,        // no worker can reach the coordinator
  kIsolate,          // a host is cut from everything else
  kHostDown,         // a host is off, and comes back later
  kHostKilled,       // its agent and all processes end at once; the network reports it
  kLossy,            // messages to and from the coordinator are lost, doubled and late
  kNewHost,          // discovery finds one host more
  kHostGone,         // discovery finds one host less, which may come back
  kAllReplaced,      // discovery finds other hosts only
  kLeave,            // SIGTERM
  kKillCoordinator,  // it ends; a new one starts later and knows nothing
};
inline constexpr int kNumJobFaults = 22;
const char* JobFaultName(JobFault fault);

struct PlannedFault {
  JobFault kind = JobFault::kKill;
  TimePoint when = 0;
  Duration lasts = 0;                                              // for faults that end
  membership::WorkerState phase = membership::WorkerState::kIdle;  // kKillInPhase
};

// The scenario of a seed: the job, its hosts, the training and the faults.
struct Scenario {
  membership::CoordinatorOptions coordinator;
  membership::WorkerOptions worker;
  std::vector<membership::HostSlots> hosts;
  int64_t steps_per_commit = 1;
  int64_t samples = 0;  // in one pass over the data
  int64_t passes = 1;
  int64_t global_batch = 0;  // 0: `rows` for each member
  int64_t rows = 0;
  Duration step_time = 0;
  std::vector<PlannedFault> faults;
  TimePoint last_fault_end = 0;
};

Scenario MakeScenario(const JobOptions& options);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_MEMBERSHIP_OPTIONS_H_
