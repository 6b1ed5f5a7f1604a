#include "ops/sim/data_plane.h"

#include <algorithm>
#include <utility>

namespace tfring::sim {

namespace {
constexpr Duration kMicrosecond = 1000;
}  // namespace

DataPlane::DataPlane(int size, VirtualClock* clock, Random random, Sink sink)
    : clock_(clock), random_(random), sink_(std::move(sink)), nodes_(static_cast<size_t>(size)) {}

void DataPlane::Submit(Rank rank, const PlanRun& run, int64_t bytes) {
  Node& node = nodes_[rank];
  if (node.aborted) {
    CompleteLater(rank, Completion{run.plan.sequence, node.why, kNoRank});
    return;
  }
  Flight& flight = flights_[run.plan.sequence];
  flight.members = run.members;
  flight.cost = std::max(flight.cost, pricing_.Price(run.plan, run.members.size(), bytes));
  node.queue.push_back(run.plan.sequence);
  if (node.queue.size() == 1) Begin(rank);
}

bool DataPlane::Running(Rank rank, uint64_t sequence) const {
  const Node& node = nodes_[rank];
  return !node.closed && !node.stuck && !node.queue.empty() && node.queue.front() == sequence;
}

void DataPlane::Begin(Rank rank) {
  Node& node = nodes_[rank];
  if (node.stuck || node.closed || node.queue.empty()) return;
  const uint64_t sequence = node.queue.front();
  Flight& flight = flights_[sequence];
  flight.begun.insert(rank);
  for (Rank member : flight.members) {
    if (nodes_[member].closed && flight.ended.count(member) == 0) flight.failed = true;
  }
  if (flight.failed) return WatchNeighbours(rank, sequence);
  if (flight.begun.size() < flight.members.size()) return;
  if (flight.cost == kNever) return;  // schedules that wait for each other: a deadlock, as in life
  const TimePoint ready = clock_->Now() + flight.cost;
  for (Rank member : flight.members) {
    clock_->At(ready + random_.Below(200 * kMicrosecond),
               [this, member, sequence] { End(member, sequence); });
  }
}

void DataPlane::End(Rank rank, uint64_t sequence) {
  if (!Running(rank, sequence)) return;
  Flight& flight = flights_[sequence];
  if (flight.failed) return;
  flight.ended.insert(rank);
  nodes_[rank].queue.pop_front();
  if (flight.ended.size() == flight.members.size()) flights_.erase(sequence);
  sink_(rank, Completion{sequence, OkStatus(), kNoRank});
  Begin(rank);
}

void DataPlane::CloseAll(Rank rank, Duration delay) {
  Node& gone = nodes_[rank];
  gone.closed = true;
  gone.closed_at = clock_->Now() + delay;
  for (auto& [sequence, flight] : flights_) {
    if (flight.failed || flight.ended.count(rank) != 0) continue;
    if (!std::binary_search(flight.members.begin(), flight.members.end(), rank)) continue;
    // All data may be out already, so that the others need the dead rank no more.
    if (flight.begun.size() == flight.members.size() && random_.Percent(50)) continue;
    flight.failed = true;
    for (Rank member : flight.members) WatchNeighbours(member, sequence);
  }
}

void DataPlane::WatchNeighbours(Rank rank, uint64_t sequence) {
  if (!Running(rank, sequence)) return;
  const std::vector<Rank>& members = flights_[sequence].members;
  const size_t size = members.size();
  const size_t self =
      static_cast<size_t>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
  for (size_t other : {(self + 1) % size, (self + size - 1) % size}) {
    const Rank peer = members[other];
    if (!nodes_[peer].closed || flights_[sequence].ended.count(peer) != 0) continue;
    const TimePoint seen = std::max(clock_->Now(), nodes_[peer].closed_at);
    clock_->At(seen + random_.Below(2000 * kMicrosecond),
               [this, rank, sequence, peer] { Break(rank, sequence, peer); });
  }
}

void DataPlane::Break(Rank rank, uint64_t sequence, Rank suspect) {
  if (!Running(rank, sequence)) return;
  ++broken_;
  nodes_[rank].stuck = true;
  nodes_[rank].queue.pop_front();
  sink_(rank, Completion{sequence, Unavailable("connection reset by peer"), suspect});
}

void DataPlane::Abort(Rank rank, const Status& why) {
  Node& node = nodes_[rank];
  node.aborted = true;
  node.why = why;
  for (uint64_t sequence : node.queue) CompleteLater(rank, Completion{sequence, why, kNoRank});
  node.queue.clear();
}

void DataPlane::CompleteLater(Rank rank, Completion completion) {
  clock_->After(random_.Below(500 * kMicrosecond),
                [this, rank, completion = std::move(completion)] {
                  if (!nodes_[rank].closed) sink_(rank, completion);
                });
}

}  // namespace tfring::sim
