#include "ops/sim/pricing.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "ops/runtime/backend/algorithms/select.h"
#include "ops/runtime/base/config.h"

namespace tfring::sim {
namespace {

using Lane = std::pair<int, int>;  // (rank, peer)

// Runs the schedules of all ranks on the model. Always starts the step that can start first.
class Replay {
 public:
  Replay(const std::vector<Schedule>& by_rank, const LinkModel& model)
      : by_rank_(by_rank), model_(model), ranks_(by_rank.size()) {
    for (size_t r = 0; r < by_rank.size(); ++r) Prepare(static_cast<int>(r));
  }

  std::vector<Duration> Run() {
    while (!ready_.empty()) {
      auto [time, rank, step] = ready_.top();
      ready_.pop();
      Perform(time, rank, step);
    }
    std::vector<Duration> ends;
    for (const RankState& rank : ranks_) ends.push_back(rank.left == 0 ? rank.end : kNever);
    return ends;
  }

 private:
  struct RankState {
    Duration out_free = 0;
    Duration in_free = 0;
    Duration core_free = 0;
    Duration end = 0;
    size_t left = 0;
    std::vector<int> waiting_for;  // by step: how many earlier steps have not ended
    std::vector<Duration> from;    // by step: the latest end of an earlier step so far
    std::vector<std::vector<int>> dependents;
  };
  using Event = std::tuple<Duration, int, int>;  // (time, rank, step)

  void Prepare(int r) {
    RankState& rank = ranks_[r];
    const std::vector<Step>& steps = by_rank_[r].steps;
    rank.left = steps.size();
    rank.waiting_for.assign(steps.size(), 0);
    rank.from.assign(steps.size(), 0);
    rank.dependents.resize(steps.size());
    std::map<std::pair<bool, int>, int> previous;  // last step of the same direction and peer
    for (size_t i = 0; i < steps.size(); ++i) {
      const int step = static_cast<int>(i);
      for (int earlier : steps[i].after) {
        if (earlier != kNoStep) Link(&rank, earlier, step);
      }
      if (!IsRemote(steps[i])) continue;
      auto [last, first] = previous.try_emplace({IsRecv(steps[i]), steps[i].peer}, step);
      if (!first) Link(&rank, std::exchange(last->second, step), step);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      if (rank.waiting_for[i] == 0) ready_.emplace(0, r, static_cast<int>(i));
    }
  }

  static void Link(RankState* rank, int earlier, int later) {
    rank->dependents[earlier].push_back(later);
    ++rank->waiting_for[later];
  }

  Duration LinkTime(int64_t bytes) const {
    return static_cast<Duration>(static_cast<double>(bytes) * 1e9 / model_.bytes_per_second);
  }

  Duration Work(RankState* rank, Duration time, int64_t bytes) const {
    const double seconds = static_cast<double>(bytes) / model_.reduce_bytes_per_second;
    rank->core_free = std::max(rank->core_free, time) + static_cast<Duration>(seconds * 1e9);
    return rank->core_free;
  }

  void Perform(Duration time, int r, int number) {
    const Step& step = by_rank_[r].steps[number];
    RankState& rank = ranks_[r];
    if (step.kind == StepKind::kSend) {
      rank.out_free = std::max(rank.out_free, time) + LinkTime(StepBytes(step));
      Arrive(rank.out_free + model_.latency, r, step);
      End(rank.out_free, r, number);
    } else if (IsRecv(step)) {
      posted_[{r, step.peer}].emplace(time, number);
      Match({r, step.peer});
    } else if (step.kind == StepKind::kJoin) {
      End(time, r, number);
    } else {
      End(Work(&rank, time, std::max(step.src.bytes, step.dst.bytes)), r, number);
    }
  }

  void Arrive(Duration time, int sender, const Step& step) {
    RankState& receiver = ranks_[step.peer];
    receiver.in_free = std::max(time, receiver.in_free + LinkTime(StepBytes(step)));
    arrived_[{step.peer, sender}].push(receiver.in_free);
    Match({step.peer, sender});
  }

  void Match(const Lane& lane) {
    std::queue<std::pair<Duration, int>>& posted = posted_[lane];
    std::queue<Duration>& arrived = arrived_[lane];
    if (posted.empty() || arrived.empty()) return;
    const auto [since, number] = posted.front();
    Duration time = std::max(since, arrived.front());
    posted.pop();
    arrived.pop();
    const Step& step = by_rank_[lane.first].steps[number];
    if (step.kind == StepKind::kRecvReduce) time = Work(&ranks_[lane.first], time, step.dst.bytes);
    End(time, lane.first, number);
  }

  void End(Duration time, int r, int number) {
    RankState& rank = ranks_[r];
    --rank.left;
    rank.end = std::max(rank.end, time);
    for (int later : rank.dependents[number]) {
      rank.from[later] = std::max(rank.from[later], time);
      if (--rank.waiting_for[later] == 0) ready_.emplace(rank.from[later], r, later);
    }
  }

  const std::vector<Schedule>& by_rank_;
  const LinkModel& model_;
  std::vector<RankState> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> ready_;
  std::map<Lane, std::queue<std::pair<Duration, int>>> posted_;  // receives that wait
  std::map<Lane, std::queue<Duration>> arrived_;                 // arrivals without a receive
};

}  // namespace

Collective DescribeCollective(const Plan& plan, size_t members, size_t self, int64_t bytes) {
  Collective collective;
  collective.kind = plan.kind;
  collective.dtype = DataType::kFloat32;
  collective.op = plan.op;
  collective.self = static_cast<int>(self);
  for (size_t m = 0; m < members; ++m) collective.members.push_back(static_cast<Rank>(m));
  if (plan.kind == CollectiveKind::kBarrier) return collective;
  TensorBuffer buffer;
  buffer.input_bytes = bytes;
  buffer.output_bytes = bytes;
  const auto all = bytes * static_cast<int64_t>(members);
  const bool root = self == 0;
  switch (plan.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      buffer.output_bytes = plan.kind == CollectiveKind::kAllgather || root ? all : 0;
      collective.block_bytes.emplace_back(members, bytes);
      break;
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kAlltoall:
      buffer.input_bytes = all;
      buffer.output_bytes = plan.kind == CollectiveKind::kAlltoall ? all : bytes;
      collective.block_bytes.emplace_back(members, bytes);
      collective.send_bytes.emplace_back(members, bytes);
      break;
    case CollectiveKind::kScatter:
      buffer.input_bytes = root ? all : 0;
      collective.block_bytes.emplace_back(members, bytes);
      break;
    case CollectiveKind::kReduce:
      buffer.output_bytes = root ? bytes : 0;
      break;
    case CollectiveKind::kSendRecv:
      (root ? buffer.output_bytes : buffer.input_bytes) = 0;
      break;
    default:
      break;
  }
  collective.buffers.push_back(buffer);
  return collective;
}

std::vector<Duration> PriceSchedules(const std::vector<Schedule>& by_rank, const LinkModel& model) {
  return Replay(by_rank, model).Run();
}

Duration PlanPrices::Price(const Plan& plan, size_t members, int64_t bytes) {
  const auto key = std::make_tuple(plan.kind, plan.op, members, bytes);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  std::vector<Schedule> by_rank;
  for (size_t self = 0; self < members; ++self) {
    by_rank.push_back(SelectSchedule(DescribeCollective(plan, members, self, bytes), Config()));
  }
  Duration last = 0;
  for (Duration end : PriceSchedules(by_rank, links_)) last = std::max(last, end);
  known_.emplace(key, last);
  return last;
}

}  // namespace tfring::sim
