#include "ops/sim/workload.h"

#include <algorithm>
#include <numeric>

#include "ops/sim/locked_workload.h"
#include "ops/sim/random_workload.h"
#include "ops/sim/withdrawal_workload.h"

namespace tfring::sim {

namespace {

// A collective, with the properties on which all its members agree.
struct Op {
  Request request;
  std::vector<Rank> members;
  std::vector<DataPath> paths;  // by rank
  Rank odd = kNoRank;           // the member that disagrees
};

const std::vector<DataType> kReducible = {DataType::kFloat16, DataType::kBfloat16,
                                          DataType::kFloat32, DataType::kFloat64, DataType::kInt32};
const std::vector<ReduceOp> kOps = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin};

class Generator {
 public:
  Generator(int ranks, Random random) : ranks_(ranks), random_(random) {}

  Workload Make(const std::string& name) {
    Workload workload;
    AddSets(name, &workload);
    mismatches_ = name == "mismatch";
    workload.config = RandomConfig(&random_);
    workload.scripts.resize(static_cast<size_t>(ranks_));
    const int64_t phases = random_.Between(2, ranks_ > 32 ? 3 : 5);
    const int64_t width = random_.Between(2, ranks_ > 32 ? 8 : 10);
    for (int64_t phase = 0; phase < phases; ++phase) {
      // Mostly repeats the calls, as training does, to use the response cache.
      if (phase == 0 || random_.Percent(30)) NewOps(width);
      for (Op& op : ops_) Vary(&op);
      AddPhase(&workload);
    }
    return workload;
  }

 private:
  void AddSets(const std::string& name, Workload* workload) {
    sets_.push_back(AllRanks(ranks_));
    if (name == "triangle") {
      sets_ = {{}, {0, 1}, {1, 2}, {0, 2}};
    } else if (name != "global") {
      for (int64_t count = random_.Between(1, 5); count > 0; --count) {
        sets_.push_back(SomeRanks(ranks_, &random_));
      }
    }
    for (size_t id = 1; id < sets_.size(); ++id) {
      workload->sets.emplace_back(static_cast<ProcessSetId>(id), sets_[id]);
    }
    if (sets_[0].empty()) first_set_ = 1;
  }

  void NewOps(int64_t width) {
    ops_.clear();
    for (int64_t i = 0; i < width; ++i) {
      Op op;
      const int64_t set = random_.Between(first_set_, static_cast<int64_t>(sets_.size()) - 1);
      op.members = sets_[static_cast<size_t>(set)];
      op.request.process_set = static_cast<ProcessSetId>(set);
      // Later phases use the same names with different properties.
      op.request.name = "op" + std::to_string(i);
      op.request.kind = static_cast<CollectiveKind>(random_.Below(4));
      op.paths = RandomPaths(ranks_, &random_);
      Fill(&op);
      ops_.push_back(std::move(op));
    }
  }

  void Fill(Op* op) {
    Request& request = op->request;
    request.group = random_.Percent(20);
    if (request.kind == CollectiveKind::kBarrier) return;
    request.dtype = random_.Pick(kReducible);
    for (int64_t tensors = random_.Between(1, 3); tensors > 0; --tensors) {
      request.shapes.push_back(RandomShape(&random_));
    }
    if (request.kind == CollectiveKind::kAllreduce) {
      request.op = random_.Pick(kOps);
      if (random_.Percent(20)) request.postscale = 0.5;
    } else if (request.kind == CollectiveKind::kBroadcast) {
      request.root = random_.Pick(op->members);
    }
  }

  // Changes what may differ between phases: a shape, and whether a member disagrees.
  void Vary(Op* op) {
    op->odd = kNoRank;
    if (mismatches_ && op->members.size() > 1 && random_.Percent(25)) {
      op->odd = random_.Pick(op->members);
    }
    if (!op->request.shapes.empty() && random_.Percent(10)) {
      op->request.shapes[0] = RandomShape(&random_);
    }
  }

  void AddPhase(Workload* workload) {
    const bool blocking = random_.Percent(30);
    std::vector<Phase> phases(static_cast<size_t>(ranks_));
    for (const Op& op : ops_) {
      for (Rank rank : op.members) {
        Call call;
        call.request = OnRank(op, rank);
        call.early = random_.Percent(50);
        if (op.odd != kNoRank) call.expected = StatusCode::kFailedPrecondition;
        if (blocking) {
          workload->scripts[rank].push_back({std::move(call)});
        } else {
          phases[rank].push_back(std::move(call));
        }
      }
    }
    workload->largest_phase = std::max(workload->largest_phase, ops_.size());
    for (Rank rank = 0; rank < ranks_; ++rank) {
      if (phases[rank].empty()) continue;
      random_.Shuffle(&phases[rank]);
      workload->scripts[rank].push_back(std::move(phases[rank]));
    }
  }

  Request OnRank(const Op& op, Rank rank) {
    Request request = op.request;
    request.path = RandomPath(op.paths, rank, &random_);
    if (request.kind == CollectiveKind::kAllgather) {
      for (Shape& shape : request.shapes) shape[0] = random_.Below(5);
    }
    if (rank == op.odd) Disagree(op, &request);
    return request;
  }

  void Disagree(const Op& op, Request* request) {
    switch (request->kind) {
      case CollectiveKind::kBarrier:
        request->kind = CollectiveKind::kBroadcast;
        request->shapes = {{1}};
        request->root = op.members[0];
        return;
      case CollectiveKind::kBroadcast:
        if (random_.Percent(50)) {
          request->root = *std::find_if(op.members.begin(), op.members.end(),
                                        [&](Rank rank) { return rank != op.request.root; });
          return;
        }
        break;
      case CollectiveKind::kAllreduce:
        if (random_.Percent(30)) {
          request->op = ReduceOp::kProduct;
          return;
        }
        break;
      default:
        break;
    }
    if (random_.Percent(50)) {
      request->dtype = DataType::kInt8;
    } else {
      request->shapes[0].push_back(2);
    }
  }

  const int ranks_;
  Random random_;
  bool mismatches_ = false;
  int64_t first_set_ = 0;
  std::vector<std::vector<Rank>> sets_;  // by id
  std::vector<Op> ops_;
};

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

Result<Workload> MakeWorkload(const std::string& name, int ranks, Random random) {
  if (name == "withdrawals" && ranks >= 1) return MakeWithdrawalWorkload(ranks, random);
  if (name == "locked" && ranks >= 1) return MakeLockedWorkload(ranks, random);
  if (name == "steady" && ranks >= 1) return MakeSteadyWorkload(ranks, random);
  if (name == "random" && ranks >= 1) return MakeRandomWorkload(ranks, random);
  if (name != "global" && name != "triangle" && name != "subsets" && name != "mismatch") {
    return InvalidArgument("workload '" + name +
                           "' is unknown: use global, triangle, subsets, mismatch, random, "
                           "withdrawals, locked or steady");
  }
  if (ranks < 1 || (name == "triangle" && ranks != 3)) {
    return InvalidArgument("workload '" + name + "' is not for " + std::to_string(ranks) +
                           " ranks: triangle takes 3, the others 1 or more");
  }
  return Generator(ranks, random).Make(name);
}

}  // namespace tfring::sim
