#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_IMPL_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/text.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/engine/peers.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

// How long a rank whose data connection broke waits for rank 0 to say which rank was lost.
inline constexpr Duration kFaultGrace = 300 * kMillisecond;
// How long rank 0 waits for other signs; shorter, so that its decision arrives within kFaultGrace.
inline constexpr Duration kSequencerGrace = 150 * kMillisecond;
// How long a rank waits for rank 0 to say which rank was lost, if a plan broke on a device, where
// it cannot be seen which peer is to blame. The process of a peer that ends gives its devices back
// before its connections close.
inline constexpr Duration kUnknownGrace = 2 * kSecond;
// How long a goodbye may take to arrive after the peer's process ended.
inline constexpr Duration kGoodbyeGrace = 500 * kMillisecond;
// A Step that comes later than this after the time it asked for was held up: the process had been
// stopped, or the machine did not run it.
inline constexpr Duration kHeldUp = 500 * kMillisecond;
// How long plans may run on after a shutdown without moving data, and how long a rank that leaves
// waits for rank 0's answer to its goodbye.
inline constexpr Duration kDrainLimit = 2 * kSecond;
// Rank 0 passes the first goodbye on at once, and those that come within this time together: at the
// end of a job all ranks leave, and nobody has to know of all others. Shorter than kGoodbyeGrace.
inline constexpr Duration kGoodbyePause = 50 * kMillisecond;
// In a frame with goodbyes of others, so many keep their texts: a thousand ranks that all end with
// an exception would have nothing else to do.
inline constexpr size_t kErrorsPassedOn = 4;
// How long rank 0, when it has left, plans for process sets without it.
inline constexpr Duration kSequencerStays = 30 * kSecond;

// The state machine behind Engine. A rank that leaves says goodbye and takes no new calls, but runs
// the plans that rank 0 numbered before it knew: rank 0 answers the goodbye, and its plans come
// before the answer. When rank 0 leaves, it plans on for process sets without it. Other ranks need
// not hear of a goodbye at once: rank 0 decides what it explains (OnFault).
//
// It ends in three stages, each at most once and in this order:
//   closed_:  no new calls, and those that wait end (after a shutdown here or on rank 0);
//   aborted_: the backend was aborted, because a plan broke or a peer was lost; plans that still
//             arrive are not run;
//   ended_:   the generation is over, and it is known why: every call that remains ends with that.
// The end of the generation includes the other two. Plans that the backend holds end with their
// completions in any stage. engine.cc has the events of normal work, end_of_generation.cc the rest.
struct Engine::Impl {
  explicit Impl(EngineOptions options);

  struct Running {
    std::vector<CallId> calls;
    std::string what;       // "'x' and 3 more"
    bool launched = false;  // a device has all of its work: the sequencer does not count it
    bool is_void = false;   // of a lock: it has to come back recalled
    bool parked = false;    // it was recalled or failed; until the lock ends its calls are in both
  };

  EngineEffects Step(TimePoint now, EngineEvents events);
  TimePoint next_deadline() const;
  size_t in_flight() const;

  // engine.cc: events.
  void OnCompletion(const Completion& completion);
  void OnLaunched(uint64_t sequence);
  void OnSubmission(Submission call);
  void OnWithdrawal(const Withdrawal& withdrawal);
  void PutOff(Duration pause);
  void OnTime();
  void OnDrainLimit();
  // Whether rank 0, which has left, has to plan for others.
  bool Stays() const;
  void OnHeartbeats();
  // Rank 0.
  void PassGoodbyesOn();
  // Moves what the negotiator produced into the effects.
  void DrainNegotiator();
  void Run(PlanRun run);
  void AddResults(const std::vector<CallId>& calls, const Status& status);
  void Hold(const std::vector<CallId>& calls);

  // end_of_generation.cc: events.
  void OnControl(const ControlEvent& event);
  void OnControlFrame(Rank from, std::string_view bytes);
  void OnGoodbye(Rank from, const Frame& frame);
  void OnDeparture(Rank from, const Departure& departure);
  void OnAbort(Rank from, const Frame& frame);
  void OnFault(Rank from, const Frame& frame);
  void OnPeerLost(Rank peer, const std::string& reason);
  void OnSuspicion(Rank suspect, const Peers::Suspicion& suspicion);
  void OnShutdown(const std::string& error);
  // A plan (`what`) failed because the data connection to completion.suspect broke.
  void OnBrokenConnection(const Completion& completion, const std::string& what);
  // The same, but it is not known which peer is gone, if one is.
  void OnBrokenGroup(const Status& failure, const std::string& what);
  // engine_lock.cc: while there is a lock.
  bool Keep(const ControlEvent& event, FrameType type);
  bool HasKeptGoodbye(Rank peer) const;
  void ReadKept();
  void OnRecalled(const Completion& completion);
  void TakeRecalled();
  void Recall(uint64_t sequence);
  void ReleaseBusy(uint64_t sequence);
  void Park(uint64_t sequence, Running plan);
  void HoldParked();
  void EndParked(const Status& why);
  void WantShutdown(const std::string& error);
  void ShutDownUnlessLocked();
  // The reasons for which a generation ends here. Each is reported to rank 0, which tells all
  // others.
  void EndOnPeerLoss(Rank peer, const std::string& reason);
  void EndOnLeave(Rank peer, const std::string& what);
  void EndOnError(const Status& status);
  void ReportFault(Rank rank, const Status& status);
  void EndGeneration(const Status& why, Rank lost);
  void UpdateHealth();
  void Refuse(const Status& why);  // new calls
  void Close(const Status& why);   // and end those that wait

  void Send(Rank to, std::string frame);
  void SendFrame(Rank to, const Frame& frame) { Send(to, EncodeFrame(frame)); }
  void Broadcast(const Frame& frame);
  void SendGoodbye(Rank to, std::vector<Departure> departures);
  std::string Name(Rank rank) const { return RankName(rank, hosts_); }
  Status LostStatus(Rank peer, const std::string& reason) const;
  Status LeftStatus(Rank peer, const std::string& what) const;
  // "rank 2 (host h) ended with an exception: ValueError: bad"; "" if there was none.
  std::string ErrorText(Rank peer) const;

  const Rank rank_;
  const int size_;
  const Config config_;
  const std::vector<std::string> hosts_;
  const uint64_t nonce_;  // see EngineOptions
  ProcessSets sets_;
  std::unique_ptr<Negotiator> negotiator_;  // null once closed_; has the calls that wait
  std::map<uint64_t, Running> running_;     // plans that the backend has, by sequence
  std::vector<CallId> held_;                // their plan broke; they end with the generation
  // Calls that wait again, while the backend still has their memory in a plan that is recalled: by
  // call, the plan. Their results are delayed until it comes back.
  std::map<CallId, uint64_t> busy_;
  std::vector<std::pair<CallId, Status>> delayed_;
  Peers peers_;
  struct Kept {
    ControlEvent event;
    bool early;  // before the sender's kFrozen
  };
  std::vector<Kept> kept_;                      // rank 0: what ranks have sent during the lock
  std::optional<std::string> shutdown_wanted_;  // rank 0: once the lock is over
  TimePoint shutdown_deadline_ = kNever;        // or then
  std::vector<Departure> goodbyes_;             // rank 0: not passed on yet
  TimePoint pass_on_at_ = 0;                    // not before

  std::set<Rank> lost_;          // whose loss ended the generation
  std::set<Rank> departed_;      // other ranks that are known to have left
  bool health_changed_ = false;  // since the last UpdateHealth

  bool started_ = false;
  bool leaving_ = false;               // OnShutdown was called
  bool aborted_ = false;               // the backend was aborted
  Status closed_;                      // not ok: why new calls are refused
  Status ended_;                       // not ok: why the generation is over
  TimePoint drain_deadline_ = kNever;  // plans that still run are aborted then
  TimePoint leave_deadline_ = kNever;  // after OnShutdown: no longer is waited for other ranks
  int64_t progress_ = 0;               // of the backend, as of this Step
  int64_t drain_progress_ = 0;         // the same when drain_deadline_ was set

  TimePoint now_ = 0;       // of the present Step
  TimePoint due_ = kNever;  // when the present Step was wanted at the latest
  EngineEffects effects_;   // of the present Step
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_IMPL_H_
