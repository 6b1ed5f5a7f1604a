#include "ops/sim/data_plane.h"

#include <algorithm>
#include <utility>

namespace tfring::sim {

DataPlane::DataPlane(int size, VirtualClock* clock, Random random, Sink sink)
    : clock_(clock), random_(random), sink_(std::move(sink)), nodes_(static_cast<size_t>(size)) {}

void DataPlane::Submit(Rank rank, const PlanRun& run, int64_t bytes) {
  Node& node = nodes_[rank];
  if (node.aborted) {
    CompleteLater(rank, Completion{run.plan.sequence, node.why, kNoRank});
    return;
  }
  RunningPlan& plan = plans_[run.plan.sequence];
  plan.members = run.members;
  plan.path = run.plan.path;
  plan.recalled = plan.recalled || run.entry == PlanEntry::kVoid;
  plan.cost = std::max(plan.cost, prices_.Price(run.plan, run.members.size(), bytes));
  std::deque<uint64_t>& queue = QueueOf(rank, plan.path);
  queue.push_back(run.plan.sequence);
  if (plan.path == DataPath::kDevice) {
    node.unlaunched.push_back(run.plan.sequence);
    if (node.unlaunched.size() == 1) LaunchLater(rank);
  } else if (queue.size() == 1) {
    Begin(rank, plan.path);
  }
}

void DataPlane::LaunchLater(Rank rank) {
  clock_->After(random_.Below(100 * kMicrosecond), [this, rank] { Launch(rank); });
}

void DataPlane::Launch(Rank rank) {
  Node& node = nodes_[rank];
  if (node.closed || node.unlaunched.empty() || Stuck(rank, DataPath::kDevice)) return;
  Completion completion;
  completion.sequence = node.unlaunched.front();
  completion.stage = CompletionStage::kLaunched;
  node.unlaunched.pop_front();
  if (!node.unlaunched.empty()) LaunchLater(rank);
  const bool first = QueueOf(rank, DataPath::kDevice).front() == completion.sequence;
  if (random_.Percent(80)) sink_(rank, completion);
  if (first) Begin(rank, DataPath::kDevice);
}

bool DataPlane::Running(Rank rank, uint64_t sequence) {
  const auto plan = plans_.find(sequence);
  if (plan == plans_.end() || nodes_[rank].closed || Stuck(rank, plan->second.path)) return false;
  const std::deque<uint64_t>& queue = QueueOf(rank, plan->second.path);
  return !queue.empty() && queue.front() == sequence;
}

void DataPlane::Begin(Rank rank, DataPath path) {
  const Node& node = nodes_[rank];
  const std::deque<uint64_t>& queue = QueueOf(rank, path);
  if (Stuck(rank, path) || node.closed || queue.empty()) return;
  if (path == DataPath::kDevice && queue.size() == node.unlaunched.size()) return;
  const uint64_t sequence = queue.front();
  RunningPlan& plan = plans_[sequence];
  plan.begun.insert(rank);
  for (Rank member : plan.members) {
    if (nodes_[member].closed && plan.ended.count(member) == 0) plan.failed = true;
  }
  if (plan.failed) return WatchNeighbours(rank, sequence);
  if (plan.begun.size() < plan.members.size()) return;
  if (plan.cost == kNever) return;  // the schedules wait for each other: the plan hangs
  const TimePoint ready = clock_->Now() + plan.cost;
  for (Rank member : plan.members) {
    clock_->At(ready + random_.Below(200 * kMicrosecond),
               [this, member, sequence] { End(member, sequence); });
  }
}

void DataPlane::End(Rank rank, uint64_t sequence) {
  if (!Running(rank, sequence)) return;
  RunningPlan& plan = plans_[sequence];
  if (plan.failed) return;
  const DataPath path = plan.path;
  Completion completion{sequence, OkStatus(), kNoRank};
  completion.recalled = plan.recalled;
  plan.ended.insert(rank);
  QueueOf(rank, path).pop_front();
  if (plan.ended.size() == plan.members.size()) plans_.erase(sequence);
  if (path == DataPath::kDevice && random_.Percent(50)) {
    CompleteLater(rank, completion);
  } else {
    sink_(rank, completion);
  }
  Begin(rank, path);
}

void DataPlane::CloseAll(Rank rank, Duration delay) {
  Node& gone = nodes_[rank];
  gone.closed = true;
  gone.closed_at = clock_->Now() + delay;
  for (auto& [sequence, plan] : plans_) {
    if (plan.failed || plan.ended.count(rank) != 0) continue;
    if (!std::binary_search(plan.members.begin(), plan.members.end(), rank)) continue;
    // The rank may have sent all its data already, so the others do not need it any more.
    if (plan.begun.size() == plan.members.size() && random_.Percent(50)) continue;
    plan.failed = true;
    for (Rank member : plan.members) WatchNeighbours(member, sequence);
  }
}

void DataPlane::WatchNeighbours(Rank rank, uint64_t sequence) {
  if (!Running(rank, sequence)) return;
  const std::vector<Rank>& members = plans_[sequence].members;
  const size_t size = members.size();
  const size_t self =
      static_cast<size_t>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
  for (size_t other : {(self + 1) % size, (self + size - 1) % size}) {
    const Rank peer = members[other];
    if (!nodes_[peer].closed || plans_[sequence].ended.count(peer) != 0) continue;
    const TimePoint seen = std::max(clock_->Now(), nodes_[peer].closed_at);
    clock_->At(seen + random_.Below(2000 * kMicrosecond),
               [this, rank, sequence, peer] { Break(rank, sequence, peer); });
  }
}

void DataPlane::Break(Rank rank, uint64_t sequence, Rank suspect) {
  if (!Running(rank, sequence)) return;
  ++broken_;
  const DataPath path = plans_[sequence].path;
  nodes_[rank].stuck[static_cast<size_t>(path)] = true;
  QueueOf(rank, path).pop_front();
  Completion completion{sequence, Unavailable("connection reset by peer"), suspect};
  if (path == DataPath::kDevice) {
    completion.suspect = kNoRank;
    completion.suspects_unknown_peer = true;
  }
  sink_(rank, std::move(completion));
}

void DataPlane::Abort(Rank rank, const Status& why) {
  Node& node = nodes_[rank];
  node.aborted = true;
  node.why = why;
  node.unlaunched.clear();
  for (std::deque<uint64_t>& queue : node.queues) {
    for (uint64_t sequence : queue) CompleteLater(rank, Completion{sequence, why, kNoRank});
    queue.clear();
  }
}

void DataPlane::CompleteLater(Rank rank, Completion completion) {
  clock_->After(random_.Below(500 * kMicrosecond),
                [this, rank, completion = std::move(completion)] {
                  if (!nodes_[rank].closed) sink_(rank, completion);
                });
}

}  // namespace tfring::sim
