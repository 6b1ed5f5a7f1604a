#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/sim/random_calls.h"
#include "ops/sim/virtual_clock.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

namespace {

class WithdrawalWorkload {
 public:
  WithdrawalWorkload(int ranks, Random random)
      : ranks_(ranks), random_(random), calls_(ranks, random_.Fork()) {}

  Workload Make() {
    workload_.config = RandomConfig(&random_);
    workload_.users.resize(static_cast<size_t>(ranks_));
    workload_.largest_phase = 64;
    std::vector<std::vector<Rank>> sets = {AllRanks(ranks_)};
    for (int64_t count = random_.Below(4); count > 0; --count)
      sets.push_back(SomeRanks(ranks_, &random_));
    for (size_t id = 1; id < sets.size(); ++id) {
      workload_.sets.emplace_back(static_cast<ProcessSetId>(id), sets[id]);
    }
    sets_ = sets;
    if (sets.size() > 1) AddDoomedSet();  // else ranks join the global set and are absent from it
    // A rank that has joined the global set takes no part in the others, which continue meanwhile.
    for (size_t id = 0; id < sets.size(); ++id) {
      AddSet(static_cast<ProcessSetId>(id), sets[id], id > 0 || sets.size() == 1);
    }
    return std::move(workload_);
  }

 private:
  using Attempts = std::vector<AttemptScript>;  // by rank

  void AddSet(ProcessSetId set, const std::vector<Rank>& members, bool joins) {
    std::map<Rank, UserScript> users;
    for (Rank rank : members) users[rank].process_set = set;
    const int64_t failures = random_.Below(4);
    for (int64_t number = 0; number <= failures; ++number) {
      Attempts attempt(static_cast<size_t>(ranks_));
      if (joins && random_.Percent(30)) {
        AddJoin(set, members, &attempt);
      } else {
        AddPhases(set, members, &attempt);
      }
      if (set == kGlobalProcessSet) ChangeSets(number == failures, &attempt);
      if (number < failures) {
        AddFailures(set, members, &random_, [this] { return MomentOfFailure(); }, &attempt);
      }
      for (Rank rank : members) {
        AttemptScript& script = attempt[rank];
        for (Phase& phase : script.phases) {
          // Some users make their calls in runs, others one by one.
          const bool in_run = random_.Percent(40);
          for (Call& call : phase) {
            call.attempt = static_cast<uint64_t>(number);
            call.may_be_aborted = number < failures;
            // In the last attempt nothing may end it.
            call.request.in_run = in_run && (number < failures || call.expected == StatusCode::kOk);
          }
        }
        users[rank].attempts.push_back(std::move(script));
      }
    }
    for (auto& [rank, user] : users) workload_.users[rank].push_back(std::move(user));
  }

  // A set that the global user removes in the end. Some rank is always missing from its calls, so
  // they end by a failure or by the removal.
  void AddDoomedSet() {
    std::vector<Rank> members = SomeRanks(ranks_, &random_);
    if (members.size() < 2 || Registered(members)) return;
    doomed_ = static_cast<ProcessSetId>(sets_.size());
    sets_.push_back(members);
    workload_.sets.emplace_back(doomed_, members);
    const Rank never = random_.Pick(members);
    for (Rank rank : members) {
      UserScript user;
      user.process_set = doomed_;
      user.removed = true;
      for (int64_t attempts = random_.Between(1, 4); attempts > 0; --attempts) {
        AttemptScript script;
        Phase calls;
        for (int64_t number = rank == never ? 0 : random_.Below(4); number > 0; --number) {
          calls.push_back(PlainCall("op" + std::to_string(number), doomed_));
          calls.back().removed = true;
          calls.back().may_be_aborted = true;
        }
        if (!calls.empty()) script.phases.push_back(std::move(calls));
        if (random_.Percent(40)) script.fails_after = MomentOfFailure();
        user.attempts.push_back(std::move(script));
      }
      workload_.users[rank].push_back(std::move(user));
    }
  }

  bool Registered(const std::vector<Rank>& ranks) const {
    return std::find(sets_.begin(), sets_.end(), ranks) != sets_.end();
  }

  // Process sets are added in any attempt, so a set may exist or not when the next attempt begins:
  // each has different ranks.
  void ChangeSets(bool last, Attempts* attempt) {
    Request request;
    request.name = "change";
    if (last && doomed_ != kGlobalProcessSet) {
      request.kind = CollectiveKind::kRemoveProcessSet;
      request.removed_set = doomed_;
    } else {
      request.kind = CollectiveKind::kAddProcessSet;
      request.set_ranks = SomeRanks(ranks_, &random_);
      if (Registered(request.set_ranks)) return;
      sets_.push_back(request.set_ranks);
    }
    for (AttemptScript& script : *attempt) {
      Call call;
      call.request = request;
      call.participants = sets_[0];
      // A join would end the attempt for this rank, so the call comes before it.
      script.phases.insert(script.phases.begin(), {std::move(call)});
    }
  }

  void AddPhases(ProcessSetId set, const std::vector<Rank>& members, Attempts* attempt) {
    for (int64_t phases = random_.Between(0, 3); phases > 0; --phases) {
      const bool blocking = random_.Percent(30);
      std::map<Rank, Phase> calls;
      for (int64_t number = random_.Between(1, 8); number > 0; --number) {
        // Mostly repeats the calls of a name in each step, to use the response cache.
        const RandomOp op = random_.Percent(20) ? calls_.Make(set, members, number)
                                                : calls_.Usual(set, members, number);
        Flaw flaw = Flaw::kNone;
        if (random_.Percent(15)) flaw = random_.Pick<Flaw>({Flaw::kMismatch, Flaw::kRefusal});
        for (auto& [rank, call] : calls_.Calls(op, op.participants, flaw)) {
          calls[rank].push_back(std::move(call));
          if (blocking) Flush(rank, &calls[rank], attempt);
        }
      }
      for (Rank rank : members) Flush(rank, &calls[rank], attempt);
    }
  }

  void Flush(Rank rank, Phase* calls, Attempts* attempt) {
    random_.Shuffle(calls);
    if (!calls->empty()) (*attempt)[rank].phases.push_back(std::move(*calls));
    calls->clear();
  }

  void AddJoin(ProcessSetId set, const std::vector<Rank>& members, Attempts* attempt) {
    std::map<Rank, int64_t> rounds;
    for (Rank rank : members) rounds[rank] = random_.Below(4);
    std::map<Rank, Phase> calls;
    for (int64_t number = 1; number <= 4; ++number) {
      const RandomOp op = calls_.Make(set, members, number);
      std::vector<Rank> present;
      for (Rank rank : op.participants) {
        if (rounds[rank] >= number) present.push_back(rank);
      }
      for (auto& [rank, call] : calls_.Calls(op, present, Flaw::kNone)) {
        calls[rank].push_back(std::move(call));
      }
    }
    for (Rank rank : members) {
      random_.Shuffle(&calls[rank]);
      if (random_.Percent(50)) Flush(rank, &calls[rank], attempt);  // waits before it joins
      calls[rank].push_back(JoinOf(set, members));
      (*attempt)[rank].phases.push_back(std::move(calls[rank]));
    }
  }

  Duration MomentOfFailure() {
    return random_.Below(random_.Percent(30) ? 100 * kMicrosecond : 5000 * kMicrosecond);
  }

  const int ranks_;
  Random random_;
  RandomCalls calls_;
  std::vector<std::vector<Rank>> sets_;      // all sets that may be registered at any time
  ProcessSetId doomed_ = kGlobalProcessSet;  // none
  Workload workload_;
};

}  // namespace

Workload MakeWithdrawalWorkload(int ranks, Random random) {
  return WithdrawalWorkload(ranks, random).Make();
}

}  // namespace tfring::sim
