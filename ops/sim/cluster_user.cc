#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/sim/cluster.h"

// The simulated users of a Cluster, and the text forms of its options.
namespace tfring::sim {

void Cluster::StartAttempt(Rank rank, size_t user) {
  Node& node = nodes_[rank];
  if (!node.alive || node.closed) return;
  const UserScript& script = workload_.users[rank][user];
  User& self = node.users[user];
  if (self.attempt == script.attempts.size()) return OnUserDone(rank, user);
  self.phase = 0;
  self.failed = false;
  self.began = node.attempts[script.process_set];
  if (options_.fault == Fault::kNone && !script.removed && self.began != self.attempt) {
    checker_.Fail("rank " + std::to_string(rank) + " is in attempt " + std::to_string(self.began) +
                  " of process set " + std::to_string(script.process_set) + ", not " +
                  std::to_string(self.attempt));
  }
  const size_t attempt = self.attempt;
  const Duration fails_after = script.attempts[attempt].fails_after;
  if (fails_after != kNever) {
    clock_.After(fails_after, [=] { FailStep(rank, user, attempt); });
  }
  clock_.After(random_.Below(100 * kMicrosecond), [=] { StartPhase(rank, user); });
}

void Cluster::StartPhase(Rank rank, size_t user) {
  Node& node = nodes_[rank];
  if (!node.alive || node.closed) return;
  User& self = node.users[user];
  const AttemptScript& script = workload_.users[rank][user].attempts[self.attempt];
  if (self.failed || self.phase == script.phases.size()) return EndAttempt(rank, user);
  const Phase& phase = script.phases[self.phase];
  self.awaited = phase.size();
  TimePoint when = clock_.Now();
  for (const Call& call : phase) {
    when += random_.Below(workload_.between_calls) + call.pause;
    clock_.At(when, [this, rank, user, &call] { SubmitCall(rank, user, call); });
  }
}

void Cluster::EndAttempt(Rank rank, size_t user) {
  User& self = nodes_[rank].users[user];
  if (workload_.users[rank][user].attempts[self.attempt].fails_at_end) {
    FailStep(rank, user, self.attempt);
  }
  ++self.attempt;
  StartAttempt(rank, user);
}

void Cluster::FailStep(Rank rank, size_t user, size_t attempt) {
  Node& node = nodes_[rank];
  User& self = node.users[user];
  if (!node.alive || node.closed || self.attempt != attempt || self.failed) return;
  self.failed = true;
  const ProcessSetId set = workload_.users[rank][user].process_set;
  checker_.OnFailure(rank, set, self.began);
  // The attempt may already be over here, if the results of its calls are still to come.
  if (node.attempts[set] == self.began) ++node.attempts[set];
  node.pending.withdrawals.push_back({set, self.began, InvalidArgument("it found a NaN")});
  PlanStep(rank);
}

void Cluster::SubmitCall(Rank rank, size_t user, const Call& call) {
  Node& node = nodes_[rank];
  if (!node.alive || node.closed) return;
  const User& self = node.users[user];
  // Other threads of a failed step may be about to call.
  if (self.failed && random_.Percent(50)) return OnCallEnded(rank, user);
  const ProcessSets& sets = node.engine->process_sets();
  // The fault came before the set was added, so this user has no set for the call.
  const bool never_added = sets.Find(call.request.process_set) == nullptr && !call.removed;
  if (never_added && options_.fault != Fault::kNone) return OnCallEnded(rank, user);
  const CallId id = next_id_++;
  checker_.OnSubmit(rank, id, call);
  node.callers[id] = user;
  node.made_at[id] = clock_.Now();
  Request request = call.request;
  const Status admitted = AdmitRequest(sets, rank, nullptr, &request);
  if (!admitted.ok()) return DeliverResult(rank, id, admitted);
  node.pending.submissions.emplace_back(id, std::move(request), self.began);
  PlanStep(rank);
}

// The user gives up the attempt if it is over and has had the one resulting error.
void Cluster::OnError(Rank rank, size_t user, const Call& call, const Status& status) {
  Node& node = nodes_[rank];
  User& self = node.users[user];
  const bool over = node.attempts[workload_.users[rank][user].process_set] != self.began;
  const bool of_answer = status.code() == StatusCode::kFailedPrecondition ||
                         status.code() == StatusCode::kInvalidArgument;
  const bool fails_run = of_answer && call.request.in_run && !call.removed;
  if (!over && (status.code() == StatusCode::kAborted || fails_run)) {
    checker_.Fail("rank " + std::to_string(rank) + " is still in the attempt that has failed");
  }
  self.failed = self.failed || over;
}

void Cluster::OnCallEnded(Rank rank, size_t user) {
  User& self = nodes_[rank].users[user];
  if (--self.awaited > 0) return;
  ++self.phase;
  clock_.After(random_.Below(300 * kMicrosecond), [=] { StartPhase(rank, user); });
}

void Cluster::OnUserDone(Rank rank, size_t user) {
  Node& node = nodes_[rank];
  node.users[user].done = true;
  if (!std::all_of(node.users.begin(), node.users.end(), [](const User& u) { return u.done; })) {
    return;
  }
  node.done = true;
  // A rank may shut down early, which must not disturb the others. Rank 0 is needed to the end. A
  // rank whose plans may wait for one that hangs does not leave here: it would give up before the
  // missing heartbeats are noticed, and all ranks would learn that it has left, but not which rank
  // hangs.
  const bool may_wait_in_vain = options_.fault == Fault::kHang && !node.plans.empty();
  if (rank != 0 && random_.Percent(30) && !may_wait_in_vain) Leave(rank);
  LeaveIfAllDone();
}

void Cluster::LeaveIfAllDone() {
  if (closing_) return;
  for (const Node& node : nodes_) {
    if (node.alive && !node.done && !node.leaving) return;
  }
  closing_ = true;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    clock_.After(random_.Below(2000 * kMicrosecond), [this, rank] { Leave(rank); });
  }
}

void Cluster::Leave(Rank rank) {
  Node& node = nodes_[rank];
  if (!node.alive || node.leaving) return;
  node.leaving = true;
  node.pending.shutdown = true;
  if (random_.Percent(50)) node.pending.error = "ValueError: it has had enough";
  checker_.OnShutdown(rank);
  PlanStep(rank);
}

const char* FaultName(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kDeath:
      return "death";
    case Fault::kHang:
      return "hang";
    case Fault::kGoodbye:
      return "goodbye";
    case Fault::kResize:
      return "resize";
  }
  return "?";
}

std::string ReplayLine(const SimOptions& options) {
  const std::string line = "tfring_sim --ranks=" + std::to_string(options.ranks) +
                           " --workload=" + options.workload +
                           " --fault=" + FaultName(options.fault);
  return line + " --seed=" + std::to_string(options.seed) + " --seeds=1";
}

}  // namespace tfring::sim
