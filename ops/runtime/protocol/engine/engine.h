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
#include "ops/runtime/protocol/message/lock_news.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

struct EngineOptions {
  Rank rank = 0;
  int size = 1;
  Config config;
  std::vector<std::string> hosts;         // host name by rank, for error messages; may be empty
  Duration start_timeout = 60 * kSecond;  // how long the other ranks may take to start
  std::vector<std::pair<ProcessSetId, std::vector<Rank>>> process_sets;  // besides the global one
  ProcessSetId last_process_set = kGlobalProcessSet;                     // see ProcessSets
  // The same on all ranks of the generation and in no other one; every frame carries it. 0: none.
  uint64_t nonce = 0;
};

// A call of this rank. The request has passed AdmitRequest, and no call of its name and process set
// is in flight.
struct Submission {
  Submission(CallId id, Request request, uint64_t attempt = 0)
      : id(id), request(std::move(request)), attempt(attempt) {}
  CallId id;
  Request request;
  uint64_t attempt;  // the caller's, of the process set: the call ends if it is over here
};

// What this rank knows of the end of its generation.
struct GenerationHealth {
  Status error;            // not ok: collectives of all ranks are not possible any more, and why
  std::vector<Rank> lost;  // the ranks whose loss ended it, ascending
  std::vector<Rank> departed;  // the other ranks that have left, ascending
};

// What happened since the last Step. Completions are handled before submissions, so a name may be
// submitted again together with the completion of its last call. (A caller with several threads
// has to collect submissions first and completions second.)
struct EngineEvents {
  std::vector<Completion> completions;
  std::vector<ControlEvent> control;
  std::vector<Withdrawal> withdrawals;  // before the submissions of the attempts that follow
  std::vector<Submission> submissions;
  bool shutdown = false;  // from now on this rank leaves; set once
  std::string error;      // with `shutdown`: the exception that ends the process; "" for none
  bool unlock = false;    // something wants to see requests: ends a lock that there is
  int64_t progress = 0;   // of the backend: differs from the last if data has moved since
};

// What has to be done now, in the order of the fields.
struct EngineEffects {
  std::vector<std::pair<Rank, std::string>> frames;
  // Not null: the process sets have changed. To be published before the runs start.
  std::shared_ptr<const ProcessSets> process_sets;
  // Each run goes to the backend, which reports a Completion, or two: with kLaunched other plans
  // may follow, with kEnded its calls end. A plan may end before those with lower numbers. One that
  // moves no data has nothing to run: the caller passes on items[0].negotiated_values and reports
  // OkStatus itself.
  std::vector<PlanRun> runs;
  std::optional<Status> abort;  // abort the backend
  // Not null: it has changed. To be published before a call ends.
  std::shared_ptr<const GenerationHealth> health;
  // This rank has left these attempts: to be noted before a call ends and its caller goes on.
  std::vector<AttemptEnd> left;
  std::vector<std::pair<CallId, Status>> results;  // each call appears exactly once, ever
  std::vector<std::string> warnings;
  std::vector<LockNews> locks;  // that have begun or ended, in this order
  bool finished = false;  // after a shutdown: nothing is in flight, and nobody needs this rank
  bool stays = false;     // after a shutdown: rank 0 plans on for others, for a limited time
  // The next plan waits for one that runs. Else nothing follows from a completion without an error
  // but the results of its calls, unless this rank leaves: it may be handed in with a later Step.
  bool awaits_end = false;
};

// The control plane of one rank during one generation, as a state machine: it takes events (calls,
// frames, completions, lost peers, the time) and returns what is to be done about them. Step never
// blocks and has no thread, socket or clock, so the simulator can drive it on virtual time.
//
// A call is always in one place: it waits in the Negotiator until a plan comes, runs with the
// backend until the plan's completion, or, if its plan broke, is held until it is known which rank
// is to blame. Each of these ends with one result, and the end of the generation ends them all:
// after a peer was lost every call, present or future, ends with Unavailable naming that rank.
// Control thread only; one per generation.
class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  EngineEffects Step(TimePoint now, EngineEvents events);

  // When Step wants to be called again even if nothing happens.
  TimePoint next_deadline() const;

  // Calls that were submitted and have no result yet.
  size_t in_flight() const;

  // The number of the lock whose batches this rank enters by itself; 0: none.
  uint64_t lock() const;

  // Rounds of locks that are known to be run by all ranks; 0 once the negotiation is over.
  uint64_t lock_rounds() const;

  // As of the last Step.
  const ProcessSets& process_sets() const;

  // Calls that went out as a cache id so far; 0 once the negotiation is over.
  int64_t cache_hits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_
