#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/sim/random_calls.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

namespace {

class RandomWorkload {
 public:
  RandomWorkload(int ranks, Random random)
      : ranks_(ranks), random_(random), calls_(ranks, random_.Fork()) {}

  // `changes`: ranks join, and sets are added and removed.
  Workload Make(bool changes) {
    Begin(changes);
    sets_[kGlobalProcessSet] = AllRanks(ranks_);
    for (int64_t count = random_.Below(3); count > 0; --count) {
      const std::vector<Rank> ranks = SomeRanks(ranks_, &random_);
      if (!Registered(ranks)) RegisterSet(ranks);
    }
    return Finish();
  }

  Workload MakeTriangle() {
    Begin(false);
    for (const std::vector<Rank>& pair : {std::vector<Rank>{0, 1}, {1, 2}, {0, 2}}) {
      RegisterSet(pair);
    }
    return Finish();
  }

 private:
  using Sets = std::map<ProcessSetId, std::vector<Rank>>;

  void Begin(bool changes) {
    changes_ = changes;
    workload_.largest_phase = 16;  // calls, and what ranks send again after an error
    workload_.config = RandomConfig(&random_);
    scripts_.resize(static_cast<size_t>(ranks_));
  }

  Workload Finish() {
    for (int64_t sections = random_.Between(4, 9); sections > 0; --sections) AddSection();
    for (std::vector<Phase>& script : scripts_) {
      workload_.users.push_back({{kGlobalProcessSet, false, {{std::move(script)}}}});
    }
    return std::move(workload_);
  }

  // The job begins with this set.
  void RegisterSet(const std::vector<Rank>& ranks) {
    last_id_ = NextId();
    workload_.sets.emplace_back(last_id_, ranks);
    sets_[last_id_] = ranks;
  }

  void AddSection() {
    phases_.assign(static_cast<size_t>(ranks_), {});
    const int64_t choice = changes_ ? random_.Below(100) : 100;
    if (choice < 25) return AddJoin();
    const bool blocking = random_.Percent(30);
    for (int64_t ops = random_.Between(1, 8); ops > 0; --ops) AddOp(ops, blocking);
    if (choice < 45) AddSet();
    if (choice >= 45 && choice < 55) RemoveSet();
    for (Phase& phase : phases_) random_.Shuffle(&phase);
    Flush();
  }

  // Ends the phase of every rank: its calls in phases_ become part of its script.
  void Flush() {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      if (!phases_[rank].empty()) scripts_[rank].push_back(std::move(phases_[rank]));
      phases_[rank].clear();
    }
  }

  bool Registered(const std::vector<Rank>& ranks) const {
    return std::any_of(sets_.begin(), sets_.end(),
                       [&](const auto& set) { return set.second == ranks; });
  }

  ProcessSetId NextId() const { return last_id_ + 1; }

  Sets::const_iterator SomeSet() {
    return std::next(sets_.begin(), random_.Below(static_cast<int64_t>(sets_.size())));
  }

  void AddOp(int64_t number, bool blocking) {
    const auto& [set, members] = *SomeSet();
    const bool repeats = !changes_ && random_.Percent(70);
    const RandomOp op =
        repeats ? calls_.Usual(set, members, number) : calls_.Make(set, members, number);
    const Flaw flaw =
        random_.Percent(20) ? random_.Pick<Flaw>({Flaw::kMismatch, Flaw::kRefusal}) : Flaw::kNone;
    for (auto& [rank, call] : calls_.Calls(op, op.participants, flaw)) {
      phases_[rank].push_back(std::move(call));
    }
    if (blocking) Flush();
  }

  // All ranks call. The call may be wrong on one of them.
  void OnAll(const Request& request, StatusCode expected, ProcessSetId new_set = -1) {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      Call call;
      call.request = request;
      call.expected = expected;
      call.participants = sets_[kGlobalProcessSet];
      call.new_set = new_set;
      phases_[rank].push_back(std::move(call));
    }
  }

  void AddSet() {
    Request request;
    request.name = "add";
    request.kind = CollectiveKind::kAddProcessSet;
    const std::vector<Rank> ranks = SomeRanks(ranks_, &random_);
    request.set_ranks = ranks;
    if (Registered(ranks)) return OnAll(request, StatusCode::kInvalidArgument);
    if (random_.Percent(20)) {
      const bool refused = ranks_ == 1 || random_.Percent(50);
      OnAll(request, refused ? StatusCode::kInvalidArgument : StatusCode::kFailedPrecondition);
      std::vector<Rank>& odd =
          phases_[static_cast<size_t>(random_.Below(ranks_))].back().request.set_ranks;
      if (refused) {
        odd.push_back(ranks_);
      } else if (odd.size() > 1) {
        odd.pop_back();
      } else {
        odd[0] = (odd[0] + 1) % ranks_;
      }
      return;
    }
    const ProcessSetId id = NextId();
    OnAll(request, StatusCode::kOk, id);
    sets_[id] = ranks;
    last_id_ = id;
  }

  void RemoveSet() {
    Request request;
    request.name = "remove";
    request.kind = CollectiveKind::kRemoveProcessSet;
    if (sets_.size() == 1 || random_.Percent(10)) {
      request.removed_set = NextId();
      return OnAll(request, StatusCode::kInvalidArgument);
    }
    const auto set = std::next(SomeSetButTheGlobal());
    request.removed_set = set->first;
    // Calls on this set that were planned for this phase might come after the removal. They make
    // way for calls that only the removal ends.
    for (Phase& phase : phases_) {
      phase.erase(
          std::remove_if(phase.begin(), phase.end(),
                         [&](const Call& call) { return call.request.process_set == set->first; }),
          phase.end());
    }
    AddCallsEndedByRemoval(set->first, set->second);
    OnAll(request, StatusCode::kOk);
    sets_.erase(set);
  }

  // A random set other than the global one, as an iterator to the set before it: the caller takes
  // std::next.
  Sets::iterator SomeSetButTheGlobal() {
    return std::next(sets_.begin(), random_.Below(static_cast<int64_t>(sets_.size()) - 1));
  }

  // Some but not all members of a set make a call, which can end only by the removal of the set.
  void AddCallsEndedByRemoval(ProcessSetId set, std::vector<Rank> members) {
    if (members.size() < 2 || random_.Percent(50)) return;
    random_.Shuffle(&members);
    members.resize(
        static_cast<size_t>(random_.Between(1, static_cast<int64_t>(members.size()) - 1)));
    for (Rank rank : members) {
      phases_[rank].push_back(PlainCall("op1", set));
      phases_[rank].back().removed = true;
    }
  }

  // The members of a set have work for different numbers of rounds, and join when it is done.
  void AddJoin() {
    const auto& [joined_set, joining] = *(random_.Percent(50) ? sets_.cbegin() : SomeSet());
    std::map<Rank, int64_t> rounds;
    for (Rank rank : joining) rounds[rank] = random_.Below(4);
    std::map<Rank, bool> blocking;
    for (Rank rank : joining) blocking[rank] = random_.Percent(30);
    for (int64_t round = 0; round < 4; ++round) {
      for (int64_t number = random_.Between(1, 3); number > 0; --number) {
        const auto& [set, members] =
            *(joined_set == kGlobalProcessSet ? SomeSet() : sets_.find(joined_set));
        RandomOp op = calls_.Make(set, members, 10 * round + number);
        std::vector<Rank> present;
        for (Rank rank : op.participants) {
          if (rounds[rank] > round) present.push_back(rank);
        }
        for (auto& [rank, call] : calls_.Calls(op, present, Flaw::kNone)) {
          if (blocking[rank]) {
            scripts_[rank].push_back({std::move(call)});
          } else {
            phases_[rank].push_back(std::move(call));
          }
        }
      }
    }
    for (Phase& phase : phases_) random_.Shuffle(&phase);
    for (Rank rank : joining) {
      // Sometimes without waiting for the rest.
      if (random_.Percent(50) && !phases_[rank].empty()) {
        scripts_[rank].push_back(std::move(phases_[rank]));
        phases_[rank].clear();
      }
      phases_[rank].push_back(JoinOf(joined_set, joining));
    }
    Flush();
  }

  const int ranks_;
  Random random_;
  RandomCalls calls_;
  bool changes_ = false;
  ProcessSetId last_id_ = kGlobalProcessSet;
  Sets sets_;                                // the sets of all ranks at this point of their scripts
  std::vector<Phase> phases_;                // by rank
  std::vector<std::vector<Phase>> scripts_;  // by rank
  Workload workload_;
};

}  // namespace

Workload MakeRandomWorkload(int ranks, Random random) {
  return RandomWorkload(ranks, random).Make(true);
}

Workload MakeSubsetsWorkload(int ranks, Random random) {
  return RandomWorkload(ranks, random).Make(false);
}

Workload MakeTriangleWorkload(Random random) { return RandomWorkload(3, random).MakeTriangle(); }

}  // namespace tfring::sim
