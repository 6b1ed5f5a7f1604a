#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/protocol/engine/control_frames.h"
#include "ops/runtime/protocol/engine/ending.h"
#include "ops/runtime/protocol/engine/kept_events.h"
#include "ops/runtime/protocol/engine/peers.h"
#include "ops/runtime/protocol/engine/running_plans.h"
#include "ops/runtime/protocol/message/lock.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/attempts.h"
#include "ops/runtime/protocol/negotiation/negotiator.h"
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

// What happened since the last Step. Completions are handled before submissions, so a name may be
// submitted again together with the completion of its last call. A caller with several threads must
// collect submissions first and completions second.
struct EngineEvents {
  std::vector<Completion> completions;
  std::vector<ControlEvent> control;
  std::vector<Withdrawal> withdrawals;  // before the submissions of the attempts that follow
  std::vector<Submission> submissions;
  bool shutdown = false;  // from now on this rank leaves; set once
  std::string error;      // with `shutdown`: the exception that ends the process; "" for none
  int64_t progress = 0;   // of the backend: changes when data has moved
};

// What the caller has to do now, in the order of the fields.
struct EngineEffects {
  std::vector<std::pair<Rank, std::string>> frames;
  // Not null: the process sets have changed. Publish them before the runs start.
  std::shared_ptr<const ProcessSets> process_sets;
  // Each run goes to the backend, which reports a Completion, or two: with kLaunched other plans
  // may follow, with kEnded its calls end. A plan may end before those with lower numbers. One that
  // moves no data has nothing to run: the caller passes on items[0].negotiated_values and reports
  // OkStatus itself.
  std::vector<PlanRun> runs;
  std::optional<Status> abort;  // abort the backend
  // Not null: it has changed. Publish it before a call ends.
  std::shared_ptr<const GenerationHealth> health;
  // This rank has left these attempts. Note them before a call ends and its caller continues.
  std::vector<AttemptEnd> left;
  std::vector<std::pair<CallId, Status>> results;  // each call appears exactly once, ever
  std::vector<std::string> warnings;
  std::vector<LockNews> locks;  // that have begun or ended, in this order
  bool finished = false;  // after a shutdown: nothing is in flight, and nobody needs this rank
  bool stays = false;     // after a shutdown: rank 0 plans on for others, for a limited time
  // True if the next plan cannot be made before a running one ends. If false, and this rank is not
  // leaving, a successful completion may be delivered with a later Step: it only produces results.
  bool awaits_end = false;
};

// The control plane of one rank during one generation, as a state machine: it takes events (calls,
// frames, completions, lost peers, the time) and returns what is to be done about them. Step never
// blocks and has no thread, socket or clock, so the simulator can drive it on virtual time.
//
// The states of a call, the owner of the call in each, and the events that move it on:
//
//   state     owner                    event                                       next
//   waiting   Negotiator               a plan names it                          -> running
//                                      its batch of a locked schedule is        -> entered
//                                        complete on this rank
//                                      a plan names it, but the backend was     -> held
//                                        aborted
//                                      its batch is complete on this rank, but  -> parked
//                                        the backend was aborted
//                                      its plan is an error, its attempt is     -> ended
//                                        over, or Close
//   running   RunningPlans, kRunning   a device has all of its plan's work      -> launched
//                                      its plan succeeds                        -> ended
//                                      no member can run its plan               -> ended
//                                      its plan fails                           -> held
//   launched  RunningPlans, kLaunched  its plan succeeds                        -> ended
//                                      its plan fails                           -> held
//   entered   RunningPlans, kRunning;  its batch succeeds                       -> ended
//             LockedCalls keeps the    the backend returns its batch recalled,  -> parked
//             request                    or the batch fails
//                                      kUnlock: not all ranks have entered it   -> recalled
//   parked    RunningPlans, kParked    kUnlock: not all ranks have entered it   -> waiting
//                                      kUnlock: all ranks have                  -> held
//                                      Close                                    -> ended
//   recalled  Negotiator, as waiting;  the backend returns the batch; a result  -> waiting
//             RunningPlans, kVoid        that comes before that is delayed
//   held      RunningPlans             the generation ends: it is known which   -> ended
//                                        rank is to blame
//   ended     EngineEffects::results   each call once
//
// After a peer was lost every call, present or future, ends with Unavailable naming that rank.
//
// A rank that leaves says goodbye and takes no new calls, but runs the plans that rank 0 numbered
// before it knew: rank 0 answers the goodbye, and its plans come before the answer. When rank 0
// leaves, it plans on for process sets without it. Other ranks need not hear of a goodbye at once:
// rank 0 decides what it explains (OnFault).
//
// engine.cc has the events of normal work, end_of_generation.cc those that end it (see Ending).
// Control thread only; one per generation.
class Engine {
 public:
  explicit Engine(EngineOptions options);
  Engine(const Engine&) = delete;

  EngineEffects Step(TimePoint now, EngineEvents events);

  // When Step wants to be called again even if nothing happens.
  TimePoint next_deadline() const;

  // Calls that were submitted and have no result yet.
  size_t in_flight() const;

  // The number of the locked schedule whose batches this rank enters by itself; 0: none.
  uint64_t lock() const;

  // Rounds of locked schedules that are known to be run by all ranks; 0 once the negotiation is
  // over.
  uint64_t lock_rounds() const;

  // After the last Step.
  const ProcessSets& process_sets() const { return sets_; }

  // Calls that went out as a cache id; 0 once the negotiation is over.
  int64_t cache_hits() const;

 private:
  struct Times {
    bool started = false;
    TimePoint now = 0;       // of the present Step
    TimePoint due = kNever;  // when the present Step was wanted at the latest
    int64_t progress = 0;    // of the backend, at the present Step
  };

  void BeginStep(TimePoint now, int64_t progress);
  void PutOff(Duration pause);
  void OnCompletion(const Completion& completion);
  void OnLaunched(uint64_t sequence);
  void OnSubmission(Submission call);
  void OnWithdrawal(const Withdrawal& withdrawal);
  void OnTime();
  void OnHeartbeats();
  bool Stays() const;     // whether rank 0, which has left, has to plan for others
  void PassGoodbyesOn();  // rank 0
  void DrainNegotiator();
  void Run(PlanRun run);
  bool InLockedSchedule(uint64_t sequence) const;
  // Rank 0, while there is a locked schedule: whether the frame is read at its end.
  bool Keep(const ControlEvent& event, FrameType type);
  void ReadKept();
  void OnRecalled(const Completion& completion);
  void TakeRecalled();
  void WantShutdown(const std::string& exception);
  void ShutDownUnlessLocked();

  // end_of_generation.cc
  void OnControl(const ControlEvent& event);
  void OnControlFrame(Rank from, std::string_view bytes);
  void OnGoodbye(Rank from, const Frame& frame);
  void OnDeparture(Rank from, const Departure& departure);
  void OnAbort(Rank from, const Frame& frame);
  void OnFault(Rank from, const Frame& frame);
  void OnPeerLost(Rank peer, const std::string& reason);
  void OnSuspicion(Rank suspect, const Peers::Suspicion& suspicion);
  void OnShutdown(const std::string& exception);
  void OnDrainLimit();
  // A plan (`what`) failed because the data connection to completion.suspect broke.
  void OnBrokenConnection(const Completion& completion, const std::string& what);
  // The same, but it is not known which peer is gone, if one is.
  void OnBrokenGroup(const Status& failure, const std::string& what);
  // The reasons for which a generation ends here. Each is reported to rank 0, which tells all
  // others.
  void EndOnPeerLoss(Rank peer, const std::string& reason);
  void EndOnLeave(Rank peer, const std::string& what);
  void EndOnError(const Status& status);
  void ReportFault(Rank rank, const Status& status);
  void EndGeneration(const Status& why, Rank culprit);
  void Abort(const Status& why);
  void Close(const Status& why);  // refuses new calls, and ends those that wait
  void SendGoodbye(Rank to, std::vector<Departure> departures);

  const Rank rank_;
  ProcessSets sets_;
  Peers peers_;
  const PeerTexts texts_;
  ControlFrames frames_;
  std::unique_ptr<Negotiator> negotiator_;  // has the calls that wait; null once it is closed
  RunningPlans plans_;
  KeptEvents kept_;
  Goodbyes goodbyes_;
  Ending ending_;
  Times time_;
  EngineEffects effects_;  // of the present Step
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_H_
