#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "ops/runtime/protocol/tree/frame_relay.h"
#include "ops/sim/control/step_cost.h"
#include "ops/sim/random.h"

namespace tfring::sim {
namespace {

// One job; the ranks differ in nothing but the order of some of them.
class Steps {
 public:
  explicit Steps(const ControlOptions& options)
      : options_(options),
        requests_(GradientRequests(options.tensors)),
        random_(options.seed),
        sets_(options.ranks),
        wires_(options.ranks, options.costs, &clock_),
        ranks_(static_cast<size_t>(options.ranks)) {
    config_.lock_schedule = false;
    config_.max_pending_bytes = INT64_MAX;
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      One& one = At(rank);
      // Nobody changes the process sets, so all ranks can have the same.
      one.negotiator = std::make_unique<Negotiator>(rank, options.ranks, config_, &sets_);
      if (options.scheme != "tree") continue;
      one.relay = std::make_unique<FrameRelay>(TreeTopology(rank, options.ranks, options.fan_out),
                                               options.hold);
      if (rank == 0) one.negotiator->ShowOwnFrames();
    }
    for (int i = 0; i < options.others && options.ranks > 1; ++i) {
      At(static_cast<Rank>(random_.Between(1, options.ranks - 1))).in_other_order = true;
    }
  }

  StepCost Run(const std::string& name) {
    wires_.Reset();
    const TimePoint begin = clock_.Now();
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      At(rank).told = 0;
      const Duration late = options_.skew > 0 ? random_.Between(0, options_.skew) : 0;
      clock_.At(begin + (rank == options_.ranks - 1 ? options_.skew : late),
                [this, rank] { Submit(rank); });
    }
    end_ = begin;
    while (clock_.RunOne()) {
    }
    for (const One& one : ranks_) {
      TFRING_CHECK(one.told == requests_.size() && one.order == ranks_[0].order)
          << "a rank was told of " << one.told << " tensors, or in another order";
    }
    known_ = true;
    StepCost cost;
    cost.step = name;
    cost.seconds = static_cast<double>(end_ - begin - options_.skew) / 1e9;
    cost.hops = wires_.hops();
    cost.messages = wires_.messages();
    cost.busiest = wires_.busiest();
    cost.measured_request_ns = 1e9 / CLOCKS_PER_SEC *
                               static_cast<double>(std::exchange(rank_0_took_, 0)) /
                               static_cast<double>(requests_.size() * ranks_.size());
    return cost;
  }

 private:
  struct One {
    std::unique_ptr<Negotiator> negotiator;
    std::unique_ptr<FrameRelay> relay;
    size_t told = 0;
    uint64_t order = 0;  // changes with every plan
    bool in_other_order = false;
    TimePoint woken_at = kNever;
  };
  One& At(Rank rank) { return ranks_[static_cast<size_t>(rank)]; }

  void Submit(Rank rank) {
    std::vector<const Request*> calls;
    for (const Request& request : requests_) calls.push_back(&request);
    if (At(rank).in_other_order) random_.Shuffle(&calls);
    if (rank == 0) CountRequests(1);
    for (const Request* request : calls) {
      At(rank).negotiator->Submit(++last_id_, *request, clock_.Now());
    }
    Drain(rank);
  }

  // Rank 0 notes the requests of so many ranks.
  void CountRequests(int64_t ranks) {
    const Duration each = known_ ? options_.costs.cache_id : options_.costs.request;
    wires_.Work(0, ranks * static_cast<int64_t>(requests_.size()) * each);
  }

  void OnFrame(Rank from, Rank to, const std::string& frame) {
    const std::clock_t begin = std::clock();
    At(to).negotiator->OnFrame(from, frame, clock_.Now());
    if (to == 0) rank_0_took_ += std::clock() - begin;
  }

  Negotiator::Output DrainNegotiator(Rank rank) {
    const std::clock_t begin = std::clock();
    Negotiator::Output out = At(rank).negotiator->Drain();
    if (rank == 0) rank_0_took_ += std::clock() - begin;
    TFRING_CHECK(out.fatal.ok()) << out.fatal.ToString();
    return out;
  }

  void Drain(Rank rank) {
    One& one = At(rank);
    Negotiator::Output out = DrainNegotiator(rank);
    for (const PlanRun& run : out.runs) {
      one.told += run.calls.size();
      one.order = one.order * 31 + run.plan.sequence;
      end_ = std::max(end_, wires_.FreeAt(rank));
    }
    if (one.relay == nullptr) {
      for (const auto& [to, frame] : out.frames) SendInStar(rank, to, frame);
    } else if (rank == 0) {
      for (std::string& frame : out.own_frames) one.relay->Know(std::move(frame), clock_.Now());
      one.relay->SendPlans(std::move(out.frames));
      DrainRelay(rank);
    } else {
      for (auto& [to, frame] : out.frames) one.relay->Send(std::move(frame), clock_.Now());
      DrainRelay(rank);
    }
    for (const PlanRun& run : out.runs) {
      one.negotiator->OnPlanDone(run.plan.sequence, clock_.Now());
    }
    if (rank == 0 && !out.runs.empty()) Drain(rank);
  }

  void SendInStar(Rank from, Rank to, const std::string& frame) {
    auto bytes = std::make_shared<const std::string>(frame);
    wires_.Send(from, to, bytes->size(), [this, from, to, bytes] {
      if (to == 0) CountRequests(1);
      OnFrame(from, to, *bytes);
      Drain(to);
    });
  }

  void DrainRelay(Rank rank) {
    FrameRelay::Output out = At(rank).relay->Drain();
    TFRING_CHECK(out.fatal.ok()) << out.fatal.ToString();
    for (auto& [to, message] : out.messages) {
      auto bytes = std::make_shared<const std::string>(std::move(message));
      wires_.Send(rank, to, bytes->size(), [this, rank, to = to, bytes] {
        At(to).relay->OnMessage(rank, *bytes, clock_.Now());
        DrainRelay(to);
      });
    }
    for (const MergedFrame& frame : out.requests) {
      CountRequests(frame.ranks.size());
      for (const RankRange& range : frame.ranks.ranges()) {
        for (Rank from = range.begin; from < range.end; ++from) {
          OnFrame(from, 0, *frame.bytes);
        }
      }
    }
    for (const FrameBytes& bytes : out.plans) {
      OnFrame(0, rank, *bytes);
    }
    if (!out.requests.empty() || !out.plans.empty()) Drain(rank);
    Wake(rank);
  }

  // At the deadline of the relay.
  void Wake(Rank rank) {
    const TimePoint deadline = At(rank).relay->next_deadline();
    if (deadline == kNever || deadline == At(rank).woken_at) return;
    At(rank).woken_at = deadline;
    clock_.At(deadline, [this, rank] {
      At(rank).relay->OnTime(clock_.Now());
      DrainRelay(rank);
    });
  }

  const ControlOptions options_;
  const std::vector<Request> requests_;
  Random random_;
  Config config_;
  ProcessSets sets_;
  VirtualClock clock_;
  Wires wires_;
  std::vector<One> ranks_;
  CallId last_id_ = 0;
  bool known_ = false;  // the requests are in the response cache
  TimePoint end_ = 0;
  std::clock_t rank_0_took_ = 0;  // of the processor
};

}  // namespace

std::vector<StepCost> RunRealSteps(const ControlOptions& options) {
  Steps steps(options);
  std::vector<StepCost> costs;
  costs.push_back(steps.Run("first"));
  costs.push_back(steps.Run("steady"));
  return costs;
}

}  // namespace tfring::sim
