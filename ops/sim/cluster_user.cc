#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/negotiation/admission.h"
#include "ops/sim/cluster.h"

// The simulated users, and the names of a run.
namespace tfring::sim {

namespace {
constexpr Duration kMicrosecond = 1000;
}  // namespace

void Cluster::StartPhase(Rank rank) {
  Node& node = nodes_[rank];
  if (!node.alive || node.closed) return;
  const std::vector<Phase>& script = workload_.scripts[rank];
  if (node.phase == script.size()) return OnScriptEnded(rank);
  const Phase& phase = script[node.phase];
  node.awaited = phase.size();
  TimePoint when = clock_.Now();
  for (const Call& call : phase) {
    when += random_.Below(200 * kMicrosecond);
    clock_.At(when, [this, rank, &call] { SubmitCall(rank, call); });
  }
}

void Cluster::SubmitCall(Rank rank, const Call& call) {
  Node& node = nodes_[rank];
  if (!node.alive || node.closed) return;
  const ProcessSets& sets = node.engine->process_sets();
  // The fault came before the set was added: this user has no set to make the call in.
  const bool never_added = sets.Find(call.request.process_set) == nullptr && !call.removed;
  if (never_added && options_.fault != Fault::kNone) return OnCallEnded(rank);
  const CallId id = next_id_++;
  checker_.OnSubmit(rank, id, call);
  Request request = call.request;
  const Status admitted = AdmitRequest(sets, rank, &request);
  if (!admitted.ok()) return PassResult(rank, id, admitted);
  node.pending.submissions.emplace_back(id, std::move(request));
  PlanStep(rank);
}

void Cluster::OnCallEnded(Rank rank) {
  Node& node = nodes_[rank];
  if (--node.awaited > 0) return;
  ++node.phase;
  clock_.After(random_.Below(300 * kMicrosecond), [this, rank] { StartPhase(rank); });
}

void Cluster::OnScriptEnded(Rank rank) {
  nodes_[rank].done = true;
  // Others may leave early, and nobody is to notice. Rank 0 is needed to the end.
  if (rank != 0 && random_.Percent(30)) Leave(rank);
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
  }
  return "?";
}

const char* SabotageName(Sabotage sabotage) {
  switch (sabotage) {
    case Sabotage::kNone:
      return "none";
    case Sabotage::kSwapPlans:
      return "swap-plans";
    case Sabotage::kAlterPlan:
      return "alter-plan";
    case Sabotage::kDropResult:
      return "drop-result";
    case Sabotage::kRepeatResult:
      return "repeat-result";
    case Sabotage::kLoseFrame:
      return "lose-frame";
  }
  return "?";
}

std::string ReplayLine(const SimOptions& options) {
  std::string line = "tfring_sim --ranks=" + std::to_string(options.ranks) +
                     " --workload=" + options.workload + " --fault=" + FaultName(options.fault);
  if (options.sabotage != Sabotage::kNone) {
    line += std::string(" --sabotage=") + SabotageName(options.sabotage);
  }
  if (!options.check_order) line += " --no-order-check";
  return line + " --seed=" + std::to_string(options.seed) + " --seeds=1";
}

}  // namespace tfring::sim
