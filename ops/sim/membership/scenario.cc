#include <algorithm>
#include <string>

#include "ops/sim/membership/options.h"
#include "ops/sim/random.h"

namespace tfring::sim {
namespace {

using membership::WorkerState;

int PickWorkers(Random* random) {
  const int64_t kind = random->Below(20);
  if (kind == 0) return static_cast<int>(random->Between(33, 64));
  if (kind < 4) return static_cast<int>(random->Between(9, 32));
  return static_cast<int>(random->Between(4, 8));
}

void MakeLimits(int workers, Random* random, membership::CoordinatorOptions* options) {
  options->np = workers;
  options->min_np = random->Percent(70) ? 1 : static_cast<int>(random->Between(1, workers - 1));
  options->max_np = workers + (random->Percent(30) ? static_cast<int>(random->Below(4)) : 0);
  options->spares = static_cast<int>(random->Below(3));
  options->start_wait = 20 * kSecond;
  options->start_limit = 80 * kSecond;
  options->min_wait = 90 * kSecond;
  options->hosts.first_failure_bars = random->Percent(10);
  options->hosts.cool_most = 20 * kSecond;
  if (random->Percent(10)) {
    options->reset_limit = static_cast<int>(random->Between(2, 6));
    options->reset_window = random->Percent(50) ? 0 : 10 * kSecond;
  }
}

// Kills the coordinator up to three times, in some of the jobs with faults.
void MakeEndsOfCoordinator(Random random, Scenario* scenario) {
  if (scenario->faults.empty() || random.Percent(60)) return;
  // Workers wait longer for a restarted coordinator than for one in their launcher.
  scenario->worker.patience = 60 * kSecond;
  for (int64_t left = random.Between(1, 3); left > 0; --left) {
    PlannedFault fault;
    fault.kind = JobFault::kKillCoordinator;
    fault.when = random.Between(500, 20000) * kMillisecond;
    fault.lasts = random.Between(50, 8000) * kMillisecond;
    scenario->faults.push_back(fault);
    scenario->last_fault_end = std::max(scenario->last_fault_end, fault.when + fault.lasts);
  }
}

void MakeFaults(int count, Random* random, Scenario* scenario) {
  static const WorkerState kPhases[] = {
      WorkerState::kWaiting, WorkerState::kJoining,  WorkerState::kMesh,  WorkerState::kSync,
      WorkerState::kRunning, WorkerState::kStopping, WorkerState::kBroken};
  for (int i = 0; i < count; ++i) {
    PlannedFault fault;
    fault.kind = random->Percent(20) ? JobFault::kKillInPhase
                                     : static_cast<JobFault>(random->Below(kNumJobFaults - 1));
    fault.when = random->Between(500, 14000) * kMillisecond;
    fault.lasts = random->Percent(50) ? random->Between(100, 4000) * kMillisecond
                                      : random->Between(4, 20) * kSecond;
    if (fault.kind == JobFault::kHold) fault.lasts *= 3;
    fault.phase = kPhases[random->Below(7)];
    scenario->faults.push_back(fault);
    scenario->last_fault_end = std::max(scenario->last_fault_end, fault.when + fault.lasts);
  }
  // A second fault soon after the first one hits the job while it recovers.
  for (size_t i = 1; i < scenario->faults.size(); ++i) {
    if (!random->Percent(50)) continue;
    scenario->faults[i].when =
        scenario->faults[i - 1].when + random->Between(0, 1000) * kMillisecond;
    scenario->last_fault_end =
        std::max(scenario->last_fault_end, scenario->faults[i].when + scenario->faults[i].lasts);
  }
}

}  // namespace

const char* JobFaultName(JobFault fault) {
  static const char* const kNames[kNumJobFaults] = {
      "kill",       "kill-first",   "kill-three", "kill-in-phase",   "kill-in-step", "exception",
      "stop",       "hold",         "pause-host", "stop-store",      "cut-pair",     "cut-store",
      "store-away", "isolate",      "host-down",  "host-killed",     "lossy",        "new-host",
      "host-gone",  "all-replaced", "leave",      "kill-coordinator"};
  return kNames[static_cast<int>(fault)];
}

Scenario MakeScenario(const JobOptions& options) {
  Random random(options.seed);
  Scenario scenario;
  const int workers = options.workers > 0 ? options.workers : PickWorkers(&random);
  MakeLimits(workers, &random, &scenario.coordinator);
  const auto slots = static_cast<int32_t>(random.Between(2, std::max(2, workers / 3)));
  const int places =
      scenario.coordinator.max_np + scenario.coordinator.spares + static_cast<int>(random.Below(3));
  for (int i = 0; i * slots < places; ++i) {
    scenario.hosts.push_back({"h" + std::to_string(i), slots});
  }
  scenario.steps_per_commit = random.Percent(60) ? 1 : random.Between(2, 4);
  scenario.step_time = random.Between(60, 200) * kMillisecond;
  scenario.passes = random.Between(1, 3);
  if (random.Percent(50)) {
    scenario.global_batch = random.Between(8, 64);
    scenario.samples = scenario.global_batch * random.Between(20, 60) / scenario.passes + 3;
  } else {
    scenario.rows = random.Between(2, 8);
    scenario.samples = scenario.rows * workers * random.Between(20, 60) / scenario.passes + 3;
  }
  const int faults = options.faults >= 0 ? options.faults : static_cast<int>(random.Below(7));
  MakeFaults(faults, &random, &scenario);
  MakeEndsOfCoordinator(random.Fork(), &scenario);
  return scenario;
}

}  // namespace tfring::sim
