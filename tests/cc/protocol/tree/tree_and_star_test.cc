#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "ops/runtime/protocol/tree/frame_relay.h"
#include "tests/cc/protocol/tree/random_job.h"
#include "tests/cc/test.h"

// Random programs on random trees with the real negotiators of all ranks, delivered in random
// orders. Two things are checked. Between rank 0 and each other rank the tree is a connection: what
// one end sends comes out at the other, once and in order; so each run is one that a star could
// have had. And every call ends as it does in a star.
//
// TFRING_TEST_ROUNDS sets the number of programs.
namespace tfring {
namespace {

using testing::Program;

// How each call ended: by rank, round and name.
using Outcomes = std::map<std::tuple<Rank, size_t, std::string>, std::string>;

class Job {
 public:
  // Without a tree frames go straight to the other end.
  Job(const Program& program, int fan_out, Duration hold, uint64_t seed)
      : program_(program), random_(seed), ranks_(static_cast<size_t>(program.size)) {
    for (Rank rank = 0; rank < program.size; ++rank) {
      One& one = At(rank);
      one.sets = std::make_unique<ProcessSets>(program.sets);
      one.negotiator =
          std::make_unique<Negotiator>(rank, program.size, program.config, one.sets.get());
      if (fan_out == 0) continue;
      one.relay = std::make_unique<FrameRelay>(TreeTopology(rank, program.size, fan_out), hold);
      if (rank == 0 && seed % 4 != 0) one.negotiator->ShowOwnFrames();
    }
  }

  // With `failing`, steps of random ranks fail now and then.
  void Run(bool failing) {
    while (fatal.empty()) {
      const auto rank = static_cast<Rank>(random_.Below(program_.size));
      if (failing && random_.Percent(1)) Withdraw(rank);
      const bool submitted = random_.Percent(40) && SubmitOne(rank);
      if (submitted || (random_.Percent(95) && DeliverOne())) continue;
      if (random_.Percent(5)) TakeTime(now_ + random_.Between(0, 200));
      bool more = DeliverOne();
      for (Rank other = 0; other < program_.size && !more; ++other) more = SubmitOne(other);
      if (more) continue;
      TimePoint next = kNever;
      for (One& one : ranks_) {
        if (one.relay) next = std::min(next, one.relay->next_deadline());
      }
      if (next == kNever) break;
      TakeTime(next);
    }
  }

  Outcomes outcomes;
  std::map<Rank, std::vector<std::string>> sent[2];     // to rank 0, and from it, by the other rank
  std::map<Rank, std::vector<std::string>> arrived[2];  // the same
  std::map<Rank, std::vector<uint64_t>> order;          // of the plans on each rank
  std::string fatal;
  size_t calls = 0;
  size_t ended = 0;
  size_t merged = 0;  // frames that came to rank 0 as part of a frame of several ranks

 private:
  struct One {
    std::unique_ptr<ProcessSets> sets;
    std::unique_ptr<Negotiator> negotiator;
    std::unique_ptr<FrameRelay> relay;
    size_t round = 0;
    size_t submitted = 0;  // of the round
    std::map<CallId, std::pair<size_t, std::string>> open;
    std::map<ProcessSetId, uint64_t> attempt;
  };
  One& At(Rank rank) { return ranks_[static_cast<size_t>(rank)]; }

  // The next call of the rank; false if there is none, or it waits for those of the last round.
  bool SubmitOne(Rank rank) {
    One& one = At(rank);
    const auto& rounds = program_.calls[static_cast<size_t>(rank)];
    if (one.round == rounds.size()) return false;
    if (one.submitted == rounds[one.round].size()) {
      if (!one.open.empty()) return false;
      ++one.round;
      one.submitted = 0;
      return true;
    }
    const Request& request = rounds[one.round][one.submitted++];
    ++calls;
    one.open[++last_id_] = {one.round, request.name};
    one.negotiator->Submit(last_id_, request, now_, one.attempt[request.process_set]);
    const bool last = one.submitted == rounds[one.round].size();
    if (last || random_.Percent(20)) Drain(rank);
    return true;
  }

  void Withdraw(Rank rank) {
    One& one = At(rank);
    one.negotiator->Withdraw(kGlobalProcessSet, one.attempt[kGlobalProcessSet],
                             "rank " + std::to_string(rank) + " failed", now_);
    ++one.attempt[kGlobalProcessSet];
    Drain(rank);
  }

  void Drain(Rank rank) {
    One& one = At(rank);
    Negotiator::Output out = one.negotiator->Drain();
    Note(out.fatal);
    for (const AttemptEnd& end : out.left) {
      uint64_t& attempt = one.attempt[end.process_set];
      attempt = std::max(attempt, end.attempt + 1);
    }
    for (const auto& [id, error] : out.refused) End(rank, id, error.ToString());
    for (const PlanRun& run : out.runs) TakePlan(rank, run);
    for (const auto& [to, frame] : out.frames) {
      (rank == 0 ? sent[1][to] : sent[0][rank]).push_back(frame);
      if (!one.relay) {
        network_[{rank, to}].push_back(frame);
      } else if (rank != 0) {
        one.relay->Send(frame, now_);
      }
    }
    if (one.relay && rank == 0) {
      for (std::string& frame : out.own_frames) one.relay->Know(std::move(frame), now_);
      one.relay->SendPlans(std::move(out.frames));
    }
    if (one.relay) DrainRelay(rank);
    for (const PlanRun& run : out.runs) {
      one.negotiator->OnPlanDone(run.plan.sequence, now_);
    }
    if (rank == 0 && !out.runs.empty()) Drain(rank);
  }

  void DrainRelay(Rank rank) {
    FrameRelay::Output out = At(rank).relay->Drain();
    Note(out.fatal);
    for (auto& [to, message] : out.messages) network_[{rank, to}].push_back(std::move(message));
    for (const MergedFrame& frame : out.requests) {
      if (frame.ranks.size() > 1) merged += static_cast<size_t>(frame.ranks.size());
      for (const RankRange& range : frame.ranks.ranges()) {
        for (Rank from = range.begin; from < range.end; ++from) Arrive(from, 0, *frame.bytes);
      }
    }
    for (const FrameBytes& bytes : out.plans) Arrive(0, rank, *bytes);
    if (!out.requests.empty() || !out.plans.empty()) Drain(rank);
  }

  void Arrive(Rank from, Rank to, const std::string& frame) {
    (to == 0 ? arrived[0][from] : arrived[1][to]).push_back(frame);
    At(to).negotiator->OnFrame(from, frame, now_);
  }

  // The next message between a random pair of ranks; false if none is under way.
  bool DeliverOne() {
    std::vector<std::pair<Rank, Rank>> pairs;
    for (const auto& [pair, queue] : network_) {
      if (!queue.empty()) pairs.push_back(pair);
    }
    if (pairs.empty()) return false;
    const auto [from, to] = random_.Pick(pairs);
    const std::string message = std::move(network_[{from, to}].front());
    network_[{from, to}].pop_front();
    if (At(to).relay) {
      At(to).relay->OnMessage(from, message, now_);
      DrainRelay(to);
    } else {
      Arrive(from, to, message);
      Drain(to);
    }
    return true;
  }

  void TakeTime(TimePoint now) {
    now_ = now;
    for (Rank rank = 0; rank < program_.size; ++rank) {
      if (!At(rank).relay) continue;
      At(rank).relay->OnTime(now_);
      DrainRelay(rank);
    }
  }

  void TakePlan(Rank rank, const PlanRun& run) {
    order[rank].push_back(run.plan.sequence);
    for (size_t i = 0; i < run.calls.size(); ++i) {
      std::string text = run.plan.error.ToString() + " " + CollectiveKindName(run.plan.kind);
      for (int64_t value : run.plan.items[i].negotiated_values) text += " " + std::to_string(value);
      End(rank, run.calls[i], text);
    }
  }

  void End(Rank rank, CallId id, const std::string& text) {
    const auto call = At(rank).open.find(id);
    if (call == At(rank).open.end()) {
      fatal = "a call of rank " + std::to_string(rank) + " ended twice";
      return;
    }
    ++ended;
    outcomes[{rank, call->second.first, call->second.second}] = text;
    At(rank).open.erase(call);
  }

  void Note(const Status& status) {
    if (!status.ok()) fatal = status.ToString();
  }

  const Program& program_;
  sim::Random random_;
  std::vector<One> ranks_;
  std::map<std::pair<Rank, Rank>, std::deque<std::string>> network_;
  TimePoint now_ = 0;
  CallId last_id_ = 0;
};

void CheckRun(const Job& job, uint64_t seed) {
  EXPECT_EQ(job.fatal, "");
  for (int way = 0; way < 2; ++way) EXPECT_TRUE(job.sent[way] == job.arrived[way]);
  for (const auto& [rank, plans] : job.order) {
    EXPECT_TRUE(std::is_sorted(plans.begin(), plans.end()));
  }
  if (testing::Failures() > 0) std::cerr << "seed " << seed << "\n";
}

std::string FirstDifference(const Outcomes& a, const Outcomes& b) {
  for (const auto& [call, text] : a) {
    const auto other = b.find(call);
    const std::string theirs = other == b.end() ? "nothing" : other->second;
    if (theirs == text) continue;
    return std::get<2>(call) + " of rank " + std::to_string(std::get<0>(call)) + " in round " +
           std::to_string(std::get<1>(call)) + ": " + text + " / " + theirs;
  }
  return a.size() == b.size() ? "" : "the star has calls that the tree has not";
}

uint64_t Rounds() {
  const char* text = std::getenv("TFRING_TEST_ROUNDS");
  return text == nullptr ? 300 : std::strtoull(text, nullptr, 10);
}

TEST(EveryCallEndsAsInAStar) {
  size_t merged = 0;
  size_t errors = 0;
  for (uint64_t seed = 1; seed <= Rounds() && testing::Failures() == 0; ++seed) {
    sim::Random random(seed);
    const Program program = testing::RandomProgram(&random);
    const auto fan_out = static_cast<int>(random.Between(2, 5));
    Job star(program, 0, 0, random.Next());
    Job tree(program, fan_out, random.Between(0, 300), random.Next());
    star.Run(false);
    tree.Run(false);
    CheckRun(star, seed);
    CheckRun(tree, seed);
    EXPECT_EQ(star.calls, star.ended);
    EXPECT_EQ(tree.calls, tree.ended);
    EXPECT_EQ(FirstDifference(tree.outcomes, star.outcomes), "");
    merged += tree.merged;
    for (const auto& [call, text] : star.outcomes) errors += text.compare(0, 2, "OK") == 0 ? 0 : 1;
  }
  EXPECT_TRUE(merged > Rounds());  // the programs are such that frames are merged, and that
  EXPECT_TRUE(errors > Rounds());  // ranks disagree
}

// What of a failing step still runs depends on the order in which frames come, also in a star.
TEST(TheTreeIsAConnectionAlsoWhenStepsFail) {
  for (uint64_t seed = 1; seed <= Rounds() && testing::Failures() == 0; ++seed) {
    sim::Random random(seed + 1000000);
    const Program program = testing::RandomProgram(&random);
    Job tree(program, static_cast<int>(random.Between(2, 5)), random.Between(0, 300),
             random.Next());
    tree.Run(true);
    CheckRun(tree, seed);
  }
}

}  // namespace
}  // namespace tfring
