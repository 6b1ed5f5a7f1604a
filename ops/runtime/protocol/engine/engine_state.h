#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_STATE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/engine/peers.h"
#include "ops/runtime/protocol/engine/pending_calls.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"

namespace tfring {

// How long a rank with a broken data stream waits for the control plane to say what happened.
inline constexpr Duration kFaultGrace = 300 * kMillisecond;
// The same for rank 0, who decides for all; shorter, so that its verdict arrives within theirs.
inline constexpr Duration kSequencerGrace = 150 * kMillisecond;
// A peer's process ended: how long its goodbye may be under way.
inline constexpr Duration kGoodbyeGrace = 500 * kMillisecond;
// How long plans may run on after a shutdown.
inline constexpr Duration kDrainLimit = 2 * kSecond;

// The engine's insides. Three things end, in this order at the latest: admission (closed_: a
// shutdown here or at rank 0, or the end of the generation), the generation (ended_: a peer was
// lost, or a plan broke), and the flight of plans that the backend still holds. Control thread
// only.
struct Engine::State {
  explicit State(EngineOptions options);

  EngineEffects Step(TimePoint now, EngineEvents events);
  TimePoint next_deadline() const;
  size_t in_flight() const { return entries_.size() + held_.size(); }
  int64_t cache_hits() const { return negotiator_ == nullptr ? 0 : negotiator_->cache_hits(); }

 private:
  // Events.
  void OnCompletion(const Completion& completion);
  void OnControl(const ControlEvent& event);
  void OnControlFrame(Rank from, const std::string& bytes);
  void OnGoodbye(Rank from, const Frame& frame);
  void OnAbort(Rank from, const Frame& frame);
  void OnFault(Rank from, const Frame& frame);
  void OnPeerLost(Rank peer, const std::string& reason);
  void OnShutdown();
  void OnSubmission(CallId id, Request request);
  void OnTime();

  // Moves what the negotiator produced into the effects.
  void Pump();
  void Run(Plan plan);
  void EndWithError(const Plan& plan);
  void CompleteHeld(const Status& status);

  void OnBrokenStream(const Completion& completion, const std::string& what);
  // The endings. Lost, Left and Failed say whom the generation ends for, and tell rank 0 or
  // everybody.
  void EndOnPeerLoss(Rank peer, const std::string& reason);
  void EndOnLeave(Rank peer, const std::string& what);
  void EndOnError(const Status& status);
  void Report(Rank rank, const Status& status);
  void EndGeneration(const Status& why, Rank lost);
  void Close(const Status& why);

  void Send(Rank to, std::string frame);
  void SendFrame(Rank to, const Frame& frame) { Send(to, EncodeFrame(frame)); }
  void Broadcast(const Frame& frame, Rank except);
  std::string Name(Rank rank) const;  // "rank 2 (host h)"
  Status LostStatus(Rank peer, const std::string& reason) const;
  Status LeftStatus(Rank peer, const std::string& what) const;

  const Rank rank_;
  const int size_;
  const Config config_;
  const std::vector<std::string> hosts_;
  ProcessSets sets_;
  std::unique_ptr<Negotiator> negotiator_;  // null once admission is closed
  PendingCalls entries_;
  std::vector<CallId> held_;  // their plan broke; they wait for the verdict
  Peers peers_;

  bool started_ = false;
  bool leaving_ = false;               // shutdown was asked for here
  bool aborted_ = false;               // the backend was told
  Status closed_;                      // not ok: why new calls are refused
  Status ended_;                       // not ok: why the generation is over
  TimePoint drain_deadline_ = kNever;  // plans that still run are aborted then
  uint64_t last_sequence_ = 0;

  TimePoint now_ = 0;      // of the present Step
  EngineEffects effects_;  // of the present Step
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENGINE_STATE_H_
