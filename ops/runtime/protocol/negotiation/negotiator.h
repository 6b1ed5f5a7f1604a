#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATOR_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

class Sequencer;  // rank 0's half: counts, validates, fuses, stamps

// Agrees with the other ranks on one order of collectives. Requests go to the sequencer (world rank
// 0), which counts readiness for every process set, validates, fuses and answers with Plans; known
// requests travel as cache ids. Pure: no thread, socket or clock; the same calls give the same
// output. Owned by the engine, used by one thread, lives for one generation.
class Negotiator {
 public:
  // What a call made necessary. Frames go out in order; plans run in order.
  struct Output {
    std::vector<std::pair<Rank, std::string>> frames;
    std::vector<Plan> plans;
    std::vector<std::string> warnings;  // stalls, for the log
    Status fatal;                       // not ok: a peer sent nonsense, or the stall limit passed
  };

  // Changes `process_sets` with the plans that say so, when they come out of Drain or OnFrame.
  Negotiator(Rank rank, int size, const Config& config, ProcessSets* process_sets);
  ~Negotiator();

  // A local tensor is ready. `request` has passed CheckRequest; its name is not in flight here.
  void Submit(Request request, TimePoint now);

  // A negotiation frame (see wire.h) from `from`.
  void OnFrame(Rank from, std::string_view frame, TimePoint now);

  // This rank's backend finished the plan: the sequencer may send what became ready meanwhile. Does
  // nothing for a plan that moves no data, which the sequencer never waits for.
  void OnPlanDone(uint64_t sequence, TimePoint now);

  // `rank` said goodbye: whatever waits for it, now or later, ends with Cancelled (sequencer only).
  void OnDeparted(Rank rank, TimePoint now);

  // Stall checks that are due.
  void OnTime(TimePoint now);

  // Hands over, and forgets, what the calls since the last Drain produced.
  Output Drain();

  TimePoint next_deadline() const;

  // Requests submitted here and not yet planned, for the bounded-queue invariant and the stall
  // report.
  size_t unplanned() const;

  // Requests that went out as a cache id, since the beginning of the generation.
  int64_t cache_hits() const;

 private:
  struct Local;
  void Fail(Status status);
  void FailPeer(Rank from, const Status& why);
  void PassOwnRequests();
  void DrainToSequencer();
  void DrainToMembers();
  std::unique_ptr<Local> local_;
  std::unique_ptr<Sequencer> sequencer_;  // rank 0 only
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NEGOTIATOR_H_
