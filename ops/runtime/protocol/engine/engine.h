#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

// Names one accepted call on this rank; never reused within a process.
using CallId = uint64_t;

struct EngineOptions {
  Rank rank = 0;
  int size = 1;
  Config config;
  std::vector<std::string> hosts;  // host name by rank, for error messages; may be empty
  std::vector<std::pair<ProcessSetId, std::vector<Rank>>> process_sets;  // besides the global one
};

// What happened since the last Step. Completions are handled before submissions: a name may be
// submitted again as soon as its completion is on the way (so the caller collects submissions
// first and completions second).
struct EngineEvents {
  std::vector<Completion> completions;
  std::vector<ControlEvent> control;
  std::vector<std::pair<CallId, Request>> submissions;
  bool shutdown = false;  // from now on this rank leaves; set once
};

// A plan to hand to the backend: entries[i] is this rank's call behind plan.items[i]. One that
// moves no data (a join, a process set that comes or goes; items[0].negotiated_values has the
// values) is for nobody: its caller announces the values, and reports a Completion with OkStatus
// for it at once, as for any other plan. The process sets have changed already.
struct PlanRun {
  Plan plan;
  std::vector<Rank> members;  // those who take part, ascending: not the absent
  std::vector<CallId> entries;

  bool moves_data() const { return MovesData(plan.kind); }
};

// What has to be done now, in the order of the fields.
struct EngineEffects {
  std::vector<std::pair<Rank, std::string>> frames;
  std::vector<PlanRun> runs;
  std::optional<Status> abort;                     // abort the backend
  std::vector<std::pair<CallId, Status>> results;  // every entry appears exactly once, ever
  std::vector<std::string> warnings;
  bool finished = false;  // after a shutdown: nothing is in flight any more
};

// One rank's life in one generation as a state machine: negotiation, plans in flight, peer loss,
// heartbeats, goodbye. Never blocks, has no thread, socket or clock, so that the simulator drives
// it on virtual time. Control thread only; one per generation. After a peer was lost every entry,
// present or future, ends with Unavailable naming that rank.
class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  EngineEffects Step(TimePoint now, EngineEvents events);

  // When Step wants to be called again even if nothing happens.
  TimePoint next_deadline() const;

  // Entries accepted and without a result yet.
  size_t in_flight() const;

  // Requests that travelled as a cache id so far; 0 once the negotiation is over.
  int64_t cache_hits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_
