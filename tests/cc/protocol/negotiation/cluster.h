#ifndef TFRING_TESTS_CC_PROTOCOL_NEGOTIATION_CLUSTER_H_
#define TFRING_TESTS_CC_PROTOCOL_NEGOTIATION_CLUSTER_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "tests/cc/protocol/requests.h"
#include "tests/cc/test.h"

namespace tfring::testing {

inline ProcessSets OverlappingSets() {
  ProcessSets sets(3);
  EXPECT_TRUE(sets.Add(1, {0, 1}).ok());
  EXPECT_TRUE(sets.Add(2, {1, 2}).ok());
  EXPECT_TRUE(sets.Add(3, {0, 2}).ok());
  return sets;
}

// A plan as it came to a rank.
struct TakenPlan : Plan {
  TakenPlan() = default;
  explicit TakenPlan(PlanRun run) : Plan(std::move(run.plan)), members(std::move(run.members)) {}
  std::vector<Rank> members;
};

// The negotiators of all ranks and a network between them that keeps the order of each pair of
// ranks and nothing else. A plan ends on a rank at a random later time. One thread, one test.
class Cluster {
 public:
  Cluster(int size, const Config& config, const ProcessSets& sets, unsigned seed)
      : size_(size),
        sets_(static_cast<size_t>(size), sets),
        rng_(seed),
        log_(size),
        running_(size) {
    for (Rank rank = 0; rank < size; ++rank) {
      negotiators_.push_back(std::make_unique<Negotiator>(rank, size, config, &sets_[rank]));
    }
  }
  Cluster(int size, const Config& config, unsigned seed = 1)
      : Cluster(size, config, ProcessSets(size), seed) {}

  const ProcessSets& sets(Rank rank) const { return sets_[rank]; }
  Negotiator& at(Rank rank) { return *negotiators_[rank]; }
  void Submit(Rank rank, Request request, uint64_t attempt = 0) {
    names_[++last_id_] = request.name;
    at(rank).Submit(last_id_, std::move(request), now, attempt);
  }

  // Everything that a rank has to do now: sends its frames and notes its plans.
  void Flush(Rank rank) {
    Negotiator::Output out = at(rank).Drain();
    for (auto& [to, frame] : out.frames) {
      ++frames;
      bytes += frame.size();
      ++frames_of_type[frame.empty() ? 0 : frame[0]];
      network_[{rank, to}].push_back(std::move(frame));
    }
    for (PlanRun& run : out.runs) {
      const Plan& plan = run.plan;
      EXPECT_EQ(run.calls.size(), plan.items.size());
      for (size_t i = 0; i < plan.items.size(); ++i) {
        EXPECT_EQ(names_.at(run.calls.at(i)), plan.items[i].name);
      }
      const bool runs = plan.error.ok() && Traits(plan.kind).uses_backend;
      if (runs) running_[rank].push_back(plan.sequence);
      log_[rank].emplace_back(std::move(run));
    }
    for (AttemptEnd& end : out.left) left[rank].push_back(std::move(end));
    for (auto& [id, error] : out.refused) refused.emplace_back(names_.at(id), std::move(error));
    for (std::string& warning : out.warnings) warnings.push_back(std::move(warning));
    if (!out.fatal.ok() && fatal.ok()) fatal = out.fatal;
  }

  // Delivers one frame of a random pair, or ends one running plan. False if nothing is left.
  bool StepOnce() {
    std::vector<std::pair<Rank, Rank>> pairs;
    for (auto& [pair, queue] : network_) {
      if (!queue.empty()) pairs.push_back(pair);
    }
    std::vector<Rank> busy;
    for (Rank rank = 0; rank < size_; ++rank) {
      if (!running_[rank].empty() && finish_plans) busy.push_back(rank);
    }
    if (pairs.empty() && busy.empty()) return false;
    const size_t pick = Below(pairs.size() + busy.size());
    if (pick < pairs.size()) {
      const auto [from, to] = pairs[pick];
      const std::string frame = std::move(network_[pairs[pick]].front());
      network_[pairs[pick]].pop_front();
      at(to).OnFrame(from, frame, now);
      Flush(to);
    } else {
      const Rank rank = busy[pick - pairs.size()];
      const uint64_t sequence = running_[rank].front();
      running_[rank].pop_front();
      at(rank).OnPlanDone(sequence, now);
      Flush(rank);
    }
    return true;
  }

  void Run() {
    for (Rank rank = 0; rank < size_; ++rank) Flush(rank);
    while (StepOnce()) {
    }
  }

  size_t Below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(rng_); }
  std::mt19937& rng() { return rng_; }

  const std::vector<TakenPlan>& log(Rank rank) const { return log_[rank]; }
  void ClearLogs() {
    for (auto& log : log_) log.clear();
    frames = bytes = 0;
  }

  // The only plan that `rank` got since ClearLogs, or an empty one.
  TakenPlan Only(Rank rank) const { return log_[rank].size() == 1 ? log_[rank][0] : TakenPlan(); }

  TimePoint now = 0;
  bool finish_plans = true;
  size_t frames = 0;
  size_t bytes = 0;
  std::map<int, size_t> frames_of_type;  // by first byte
  std::vector<std::string> warnings;
  std::map<Rank, std::vector<AttemptEnd>> left;
  std::vector<std::pair<std::string, Status>> refused;  // by name of the call
  Status fatal;

 private:
  int size_;
  std::vector<ProcessSets> sets_;  // by rank
  std::mt19937 rng_;
  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::map<std::pair<Rank, Rank>, std::deque<std::string>> network_;
  std::vector<std::vector<TakenPlan>> log_;
  CallId last_id_ = 0;
  std::map<CallId, std::string> names_;
  std::vector<std::deque<uint64_t>> running_;
};

// One line per item, for comparing what ranks got.
inline std::string PlanText(const TakenPlan& plan) {
  std::string text = std::to_string(plan.sequence) + "/" + std::to_string(plan.process_set) + "/" +
                     CollectiveKindName(plan.kind) + "/" + RanksString(plan.members) + "/" +
                     plan.error.ToString();
  for (const PlanItem& item : plan.items) {
    text += "\n  " + item.name;
    for (int64_t dim : item.negotiated_values) text += " " + std::to_string(dim);
  }
  return text;
}

inline std::string LogText(const std::vector<TakenPlan>& plans) {
  std::string text;
  for (const TakenPlan& plan : plans) text += PlanText(plan) + "\n";
  return text;
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_PROTOCOL_NEGOTIATION_CLUSTER_H_
