#include "ops/sim/workload.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfring::sim {
namespace {

void DropJoin(AttemptScript* script) {
  const auto is_join = [](const Call& call) { return call.request.kind == CollectiveKind::kJoin; };
  std::vector<Phase>& phases = script->phases;
  for (Phase& phase : phases) {
    phase.erase(std::remove_if(phase.begin(), phase.end(), is_join), phase.end());
  }
  const auto is_empty = [](const Phase& phase) { return phase.empty(); };
  phases.erase(std::remove_if(phases.begin(), phases.end(), is_empty), phases.end());
}

}  // namespace

Shape RandomShape(Random* random) {
  Shape shape;
  for (int64_t i = random->Between(1, 3); i > 0; --i) shape.push_back(random->Between(1, 12));
  return shape;
}

Config RandomConfig(Random* random) {
  Config config;
  config.fusion_threshold_bytes = random->Pick<int64_t>({0, 1024, 128 << 20});
  config.cache_capacity = random->Pick<int64_t>({0, 2, 1024});
  config.max_plans_in_flight = random->Between(1, 3);
  config.disable_group_fusion = random->Percent(30);
  if (!random->Percent(20)) config.heartbeat_interval = 0;
  if (!random->Percent(20)) config.stall_warning = 0;
  Random more(*random);  // no draw from *random: runs stay the same
  config.lock_schedule = more.Percent(50);
  return config;
}

std::vector<DataPath> RandomPaths(int ranks, Random* random) {
  const int64_t choice = random->Below(5);
  const int on_device = choice < 2 ? 0 : choice == 2 ? 50 : 100;
  std::vector<DataPath> paths;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool staged = choice == 1 || (choice == 2 && rank % 2 == 0);
    const DataPath other = staged ? DataPath::kStaged : DataPath::kCpu;
    paths.push_back(random->Percent(on_device) ? DataPath::kDevice : other);
  }
  return paths;
}

DataPath RandomPath(const std::vector<DataPath>& paths, Rank rank, Random* random) {
  const DataPath usual = paths[static_cast<size_t>(rank)];
  if (!random->Percent(2)) return usual;
  if (usual != DataPath::kCpu) return DataPath::kCpu;
  return rank % 2 == 0 ? DataPath::kStaged : DataPath::kDevice;
}

std::vector<Rank> AllRanks(int ranks) {
  std::vector<Rank> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<Rank> SomeRanks(int ranks, Random* random) {
  std::vector<Rank> some = AllRanks(ranks);
  random->Shuffle(&some);
  some.resize(static_cast<size_t>(random->Between(1, ranks)));
  std::sort(some.begin(), some.end());
  return some;
}

Call JoinOf(ProcessSetId set, const std::vector<Rank>& members) {
  Call join;
  join.request.name = "join";
  join.request.kind = CollectiveKind::kJoin;
  join.request.process_set = set;
  join.participants = members;
  return join;
}

Call PlainCall(const std::string& name, ProcessSetId set) {
  Call call;
  call.request.name = name;
  call.request.process_set = set;
  call.request.shapes = {{2}};
  return call;
}

void AddFailures(ProcessSetId set, const std::vector<Rank>& members, Random* random,
                 const std::function<Duration()>& moment, std::vector<AttemptScript>* scripts) {
  const Rank first = random->Pick(members);
  for (Rank rank : members) {
    AttemptScript& script = (*scripts)[rank];
    if (random->Percent(rank == first ? 60 : 20)) script.fails_after = moment();
    if (rank == first) {
      script.fails_at_end = true;
      DropJoin(&script);
      continue;
    }
    Call last = PlainCall("last", set);
    last.expected = StatusCode::kAborted;
    script.phases.push_back({std::move(last)});
  }
}

Result<Workload> MakeWorkload(const std::string& name, int ranks, Random random) {
  if (name == "withdrawals" && ranks >= 1) return MakeWithdrawalWorkload(ranks, random);
  if (name == "locked" && ranks >= 1) return MakeLockedWorkload(ranks, random);
  if (name == "steady" && ranks >= 1) return MakeSteadyWorkload(ranks, random);
  if (name == "random" && ranks >= 1) return MakeRandomWorkload(ranks, random);
  if (name == "subsets" && ranks >= 1) return MakeSubsetsWorkload(ranks, random);
  if (name == "triangle" && ranks == 3) return MakeTriangleWorkload(random);
  return InvalidArgument("there is no workload '" + name + "' for " + std::to_string(ranks) +
                         " ranks: use subsets, random, withdrawals, locked or steady, or triangle "
                         "for 3 ranks");
}

}  // namespace tfring::sim
