#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/sim/random_calls.h"
#include "ops/sim/virtual_clock.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

namespace {

class LockedWorkload {
 public:
  LockedWorkload(int ranks, Random random)
      : ranks_(ranks), all_(AllRanks(ranks)), random_(random), calls_(ranks, random_.Fork()) {}

  // Equal rounds only.
  Workload MakeSteady() {
    workload_.config = RandomConfig(&random_);
    workload_.config.lock_schedule = true;
    workload_.config.cache_capacity = 1024;
    steady_ = true;
    workload_.fault_within = 40 * kMillisecond;
    workload_.fault_within_steps = 300;
    for (Rank rank = 0; rank < ranks_; ++rank) waits_.push_back(random_.Percent(20));
    paths_.assign(static_cast<size_t>(ranks_), DataPath::kCpu);
    for (int64_t count = random_.Between(1, 4); count > 0; --count) step_.push_back(NewOp());
    present_.resize(static_cast<size_t>(ranks_));
    phases_.resize(static_cast<size_t>(ranks_));
    for (int64_t rounds = random_.Between(40, 60); rounds > 0; --rounds) AddRound();
    for (AttemptScript& script : present_) attempts_.push_back({std::move(script)});
    return Finish();
  }

  Workload Make() {
    workload_.config = RandomConfig(&random_);
    workload_.config.lock_schedule = true;
    if (!random_.Percent(10)) workload_.config.cache_capacity = 1024;
    disturbed_ = random_.Pick<int>({5, 20, 50});
    // The engine fuses calls that come at once, in a lock too.
    if (random_.Percent(50)) workload_.between_calls = 2 * kMicrosecond;
    // A round takes about 1 ms. Most faults happen in or near the first lock.
    workload_.fault_within = random_.Pick<int64_t>({20, 100}) * kMillisecond;
    workload_.fault_within_steps = workload_.fault_within / kMillisecond;
    for (Rank rank = 0; rank < ranks_; ++rank) waits_.push_back(random_.Percent(20));
    const std::vector<DataPath> paths(static_cast<size_t>(ranks_),
                                      random_.Percent(10) ? DataPath::kDevice : DataPath::kCpu);
    paths_ = random_.Percent(10) ? RandomPaths(ranks_, &random_) : paths;
    for (int64_t count = random_.Between(1, 8); count > 0; --count) step_.push_back(NewOp());
    failures_ = random_.Percent(60) ? 0 : random_.Between(1, 3);
    for (int64_t number = 0; number <= failures_; ++number) AddAttempt(number);
    return Finish();
  }

 private:
  Workload Finish() {
    workload_.users.resize(static_cast<size_t>(ranks_));
    workload_.largest_phase = 64;
    for (Rank rank = 0; rank < ranks_; ++rank) {
      UserScript user;
      user.attempts = std::move(attempts_[rank]);
      workload_.users[rank].push_back(std::move(user));
    }
    return std::move(workload_);
  }

  void AddAttempt(int64_t number) {
    present_.assign(static_cast<size_t>(ranks_), {});
    std::vector<Phase> none(static_cast<size_t>(ranks_));
    phases_ = none;
    if (random_.Percent(30)) AddLateCalls();
    for (int64_t rounds = random_.Between(4, 24); rounds > 0; --rounds) AddRound();
    if (random_.Percent(20)) AddJoin();
    if (number < failures_) {
      AddFailures(
          kGlobalProcessSet, all_, &random_, [this] { return random_.Below(20 * kMillisecond); },
          &present_);
    }
    attempts_.resize(static_cast<size_t>(ranks_));
    for (Rank rank = 0; rank < ranks_; ++rank) {
      for (Phase& phase : present_[rank].phases) {
        for (Call& call : phase) {
          call.attempt = static_cast<uint64_t>(number);
          call.may_be_aborted = number < failures_;
        }
      }
      attempts_[rank].push_back(std::move(present_[rank]));
    }
  }

  void AddRound() {
    size_t left_out = step_.size();
    const int64_t choice = random_.Percent(disturbed_) ? random_.Below(20) : 20;
    if (choice < 4) {
      left_out = static_cast<size_t>(random_.Below(static_cast<int64_t>(step_.size())));
    } else if (choice < 7) {
      random_.Shuffle(&step_);  // for ranks that wait between their calls
    } else if (choice < 9) {
      for (size_t rank = 0; rank < waits_.size(); ++rank) waits_[rank] = random_.Percent(30);
    } else if (choice < 11) {
      step_.push_back(NewOp());
    } else if (choice < 13 && step_.size() > 1) {
      step_.pop_back();
    } else if (choice < 15) {
      random_.Pick(step_)->request.shapes[0] = RandomShape(&random_);
    } else if (choice < 17) {
      AddStray();
    } else if (choice < 19) {
      ChangeSets();
    }
    // All ranks that wait for each result call in the same order.
    for (size_t i = 0; i < step_.size(); ++i) {
      if (i != left_out) AddCalls(*step_[i], Flaw::kNone);
    }
    if (choice == 19) AddPause();
    Flush();
  }

  std::shared_ptr<RandomOp> NewOp() {
    auto op = std::make_shared<RandomOp>();
    op->request.name = "op" + std::to_string(++last_op_);
    op->request.kind = CollectiveKind::kAllreduce;
    op->request.dtype = random_.Percent(70) ? DataType::kFloat32 : DataType::kFloat16;
    op->request.shapes = {RandomShape(&random_)};
    op->request.in_run = random_.Percent(50);
    op->set = op->participants = all_;
    op->paths = paths_;
    return op;
  }

  void AddCalls(const RandomOp& op, Flaw flaw) {
    for (auto& [rank, call] : calls_.Calls(op, op.participants, flaw)) {
      if (steady_) call.request.path = DataPath::kCpu;
      phases_[rank].push_back(std::move(call));
      if (waits_[rank]) Flush(rank);
    }
  }

  // A metric or any other call, perhaps wrong; alone or within the step.
  void AddStray() {
    const RandomOp op = calls_.Make(kGlobalProcessSet, all_, 1000 + random_.Below(3));
    Flaw flaw = Flaw::kNone;
    if (random_.Percent(30)) flaw = random_.Pick<Flaw>({Flaw::kMismatch, Flaw::kRefusal});
    AddCalls(op, flaw);
    if (random_.Percent(50)) Flush();
  }

  // One rank is slow enough for the others to notice.
  void AddPause() {
    Phase& phase = phases_[static_cast<size_t>(random_.Below(ranks_))];
    if (!phase.empty()) phase[0].pause = random_.Between(50, 400) * kMillisecond;
  }

  // After some equal rounds one rank computes for a few ms before its last call.
  void AddLateCalls() {
    const Rank rank = random_.Pick(all_);
    const std::string last = random_.Pick(step_)->request.name;
    const int64_t late = random_.Between(4, 8);
    for (int64_t round = 0; round < 16; ++round) {
      for (const auto& op : step_) AddCalls(*op, Flaw::kNone);
      for (Call& call : phases_[rank]) {
        if (round >= late && call.request.name == last)
          call.pause = random_.Between(10, 20) * kMillisecond;
      }
      Flush();
    }
  }

  // Without failures the sets are known.
  void ChangeSets() {
    Flush();
    Request request;
    request.name = "change";
    const std::vector<Rank> members = SomeRanks(ranks_, &random_);
    const bool removes = set_ > 0;
    if (removes) {
      request.kind = CollectiveKind::kRemoveProcessSet;
      request.removed_set = std::exchange(set_, kGlobalProcessSet);
    } else {
      if (failures_ > 0 || members == all_) return;
      request.kind = CollectiveKind::kAddProcessSet;
      request.set_ranks = members;
      set_ = ++last_set_;
    }
    for (Rank rank : all_) {
      Call call;
      call.request = request;
      call.participants = all_;
      if (!removes) call.new_set = set_;
      phases_[rank].push_back(std::move(call));
    }
    Flush();
    for (int64_t calls = removes ? 0 : random_.Below(3); calls > 0; --calls) {
      AddCalls(calls_.Make(set_, members, calls), Flaw::kNone);
    }
    Flush();
  }

  // Ranks have work for different numbers of rounds, and join.
  void AddJoin() {
    std::vector<int64_t> rounds;
    for (Rank rank = 0; rank < ranks_; ++rank) rounds.push_back(random_.Below(4));
    for (int64_t round = 1; round <= 4; ++round) {
      std::vector<Rank> present;
      for (Rank rank : all_) {
        if (rounds[rank] >= round) present.push_back(rank);
      }
      for (const auto& op : step_) {
        for (auto& [rank, call] : calls_.Calls(*op, present, Flaw::kNone)) {
          phases_[rank].push_back(std::move(call));
        }
      }
      Flush();
    }
    for (Rank rank : all_) phases_[rank].push_back(JoinOf(kGlobalProcessSet, all_));
    Flush();
  }

  void Flush() {
    for (Rank rank = 0; rank < ranks_; ++rank) Flush(rank);
  }

  void Flush(Rank rank) {
    random_.Shuffle(&phases_[rank]);
    std::stable_partition(phases_[rank].begin(), phases_[rank].end(),
                          [](const Call& call) { return call.pause == 0; });
    if (!phases_[rank].empty()) present_[rank].phases.push_back(std::move(phases_[rank]));
    phases_[rank].clear();
  }

  const int ranks_;
  const std::vector<Rank> all_;
  Random random_;
  RandomCalls calls_;
  std::vector<DataPath> paths_;
  std::vector<bool> waits_;  // by rank: waits for each result before the next call
  std::vector<std::shared_ptr<RandomOp>> step_;  // the calls that repeat
  int64_t last_op_ = 0;
  int disturbed_ = 0;  // percentage of disturbed rounds
  bool steady_ = false;
  int64_t failures_ = 0;
  ProcessSetId set_ = kGlobalProcessSet;  // the added set; global: none
  ProcessSetId last_set_ = kGlobalProcessSet;
  std::vector<Phase> phases_;           // by rank
  std::vector<AttemptScript> present_;  // by rank
  std::vector<std::vector<AttemptScript>> attempts_;
  Workload workload_;
};

}  // namespace

Workload MakeSteadyWorkload(int ranks, Random random) {
  return LockedWorkload(ranks, random).MakeSteady();
}

Workload MakeLockedWorkload(int ranks, Random random) {
  return LockedWorkload(ranks, random).Make();
}

}  // namespace tfring::sim
