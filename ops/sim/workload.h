#ifndef TFRING_OPS_SIM_WORKLOAD_H_
#define TFRING_OPS_SIM_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/sim/random.h"

namespace tfring::sim {

// One call that a simulated user makes on one rank.
struct Call {
  Request request;
  // The expected end in a run without faults: the ranks may disagree about the call on purpose, or
  // it may be invalid on one of them.
  StatusCode expected = StatusCode::kOk;
  bool removed = false;            // its process set is removed meanwhile: any error is right
  std::vector<Rank> participants;  // its plan must have these; empty: not checked
  ProcessSetId new_set = -1;       // adding a process set: the expected id, if known
  uint64_t attempt = 0;            // of its process set; all calls of a plan have the same
  bool may_be_aborted = false;     // the step fails on some rank
  Duration pause = 0;              // the user waits this long before the call
  bool early = false;              // gets its result when its plan is launched
};

// Calls that one rank makes in this order without waiting in between; then it waits for all of
// them. A user without tf.function has one call per phase, with tf.function many.
using Phase = std::vector<Call>;

// One attempt of a user's step. If the step fails on any rank, the user drops the rest and begins
// the next attempt when its open calls have ended.
struct AttemptScript {
  std::vector<Phase> phases;
  Duration fails_after = kNever;  // after the begin of the step, unless it has ended
  bool fails_at_end = false;      // otherwise after its last phase
};

// The script of one user on a rank: one attempt after another. The users of a rank work at the same
// time. All attempts except the first need a process set that no other user has.
struct UserScript {
  ProcessSetId process_set = kGlobalProcessSet;
  bool removed = false;  // the set is removed meanwhile
  std::vector<AttemptScript> attempts;
};

// The scripts of all ranks in one run. They depend only on the name, the number of ranks and the
// seed. Ranks submit the calls of a phase in different orders, but single calls in orders that
// cannot deadlock.
struct Workload {
  std::vector<std::pair<ProcessSetId, std::vector<Rank>>> sets;
  std::vector<std::vector<UserScript>> users;  // by rank
  Config config;
  size_t largest_phase = 0;
  Duration between_calls = 200 * kMicrosecond;  // upper limit, within one phase
  // A fault happens within this time from the start of the run, or this number of Engine::Steps.
  Duration fault_within = 60 * kMillisecond;
  int64_t fault_within_steps = 60;
};

// Used by several workloads. The paths are by rank: all equal, or random.
Shape RandomShape(Random* random);
Config RandomConfig(Random* random);
std::vector<DataPath> RandomPaths(int ranks, Random* random);
// Returns mostly the rank's path.
DataPath RandomPath(const std::vector<DataPath>& paths, Rank rank, Random* random);
std::vector<Rank> AllRanks(int ranks);
std::vector<Rank> SomeRanks(int ranks, Random* random);  // at least one; ascending
Call JoinOf(ProcessSetId set, const std::vector<Rank>& members);
Call PlainCall(const std::string& name, ProcessSetId set);  // an allreduce

// On one member the step fails at its end at the latest, so a rank is always missing from the last
// call of the others. `moment` draws when a step fails. The scripts are by rank.
void AddFailures(ProcessSetId set, const std::vector<Rank>& members, Random* random,
                 const std::function<Duration()>& moment, std::vector<AttemptScript>* scripts);

// Makes the workload of this name. InvalidArgument for an unknown name or a size that does not suit
// the workload.
Result<Workload> MakeWorkload(const std::string& name, int ranks, Random random);

// "random": every kind of collective on random overlapping process sets, which are added and
// removed during the run. Ranks run out of work at different times and join. Ranks disagree about
// some calls, and some calls are invalid on one rank. Each call holds its expected end and its
// participants.
Workload MakeRandomWorkload(int ranks, Random random);
// "subsets": the same without joins on sets that stay, and most calls repeat.
Workload MakeSubsetsWorkload(int ranks, Random random);
// "triangle": the same on the sets {0,1}, {1,2} and {0,2} of three ranks.
Workload MakeTriangleWorkload(Random random);

// "withdrawals": steps that fail, on overlapping process sets. Each set has one user on each
// member. The user tries a step of random collectives, joins included, up to four times. In each
// attempt except the last the step fails on one or more ranks at random moments: before its first
// call, while calls wait or run, after the last call, or because the ranks disagree in a call. The
// other ranks have a last call that only this failure can end. In the last attempt nothing fails.
// Names repeat in each attempt. Meanwhile process sets are added, and one is removed in which steps
// fail.
Workload MakeWithdrawalWorkload(int ranks, Random random);

// "locked": steps that repeat, so that rank 0 locks them, and then change: a tensor is missing or
// new, a shape changes, the order changes on one rank or on all, one rank waits for a result where
// the others do not, a rank is slow once or before the last call of several rounds, a metric or a
// wrong call comes in between, ranks join, a process set is added, used and removed, or a step
// fails on some ranks.
Workload MakeLockedWorkload(int ranks, Random random);
// "steady": steps that repeat. Faults happen within a lock or at its begin or end.
Workload MakeSteadyWorkload(int ranks, Random random);

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_WORKLOAD_H_
