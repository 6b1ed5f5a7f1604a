#include <utility>

#include "ops/runtime/protocol/engine/engine_state.h"

// How a generation ends: what control frames and lost connections mean, and who is told.
namespace tfring {

namespace {

FrameType PeekType(const std::string& bytes) {
  return bytes.empty() ? FrameType{0} : static_cast<FrameType>(static_cast<uint8_t>(bytes[0]));
}

bool IsNegotiation(FrameType type) {
  return type == FrameType::kRequests || type == FrameType::kPlans || type == FrameType::kResend;
}

}  // namespace

void Engine::State::OnControl(const ControlEvent& event) {
  if (!peers_.InRange(event.peer) || event.peer == rank_) return;
  if (event.kind == ControlEvent::Kind::kPeerLost) return OnPeerLost(event.peer, event.reason);
  if (!peers_.IsControlPeer(event.peer)) return;
  peers_.Received(event.peer, now_);
  if (!IsNegotiation(PeekType(event.frame))) return OnControlFrame(event.peer, event.frame);
  // A rank that has left may have sent requests before; they are cancelled there already.
  if (negotiator_ == nullptr || peers_.departed(event.peer)) return;
  negotiator_->OnFrame(event.peer, event.frame, now_);
}

void Engine::State::OnControlFrame(Rank from, const std::string& bytes) {
  Result<Frame> frame = DecodeFrame(bytes);
  if (!frame.ok()) {
    return EndOnPeerLoss(from, "it sent a frame that cannot be read: " + frame.status().message());
  }
  switch (frame->type) {
    case FrameType::kHeartbeat:
      return;
    case FrameType::kGoodbye:
      return OnGoodbye(from, *frame);
    case FrameType::kAbort:
      return OnAbort(from, *frame);
    case FrameType::kFault:
      return OnFault(from, *frame);
    default:
      return EndOnPeerLoss(from, "it sent a frame of the wrong type");
  }
}

void Engine::State::OnGoodbye(Rank from, const Frame& frame) {
  const Rank who = frame.rank;
  if (!peers_.InRange(who) || who == rank_ || (rank_ == 0 && who != from)) {
    return EndOnPeerLoss(from, "it sent a goodbye for rank " + std::to_string(who));
  }
  if (peers_.departed(who)) return;
  peers_.MarkDeparted(who);
  if (rank_ == 0) Broadcast(frame, who);
  std::optional<Peers::Suspicion> suspicion = peers_.TakeSuspicion(who);
  if (suspicion && suspicion->hard) return EndOnLeave(who, "");
  if (rank_ == 0 && negotiator_ != nullptr) negotiator_->OnDeparted(who, now_);
  // Nobody counts any more. What runs needs no sequencer, but nobody can tell us if it breaks
  // elsewhere: hence the limit.
  if (who != 0) return;
  Pump();  // plans that came before the goodbye still count
  Close(LeftStatus(0, ""));
}

void Engine::State::OnAbort(Rank from, const Frame& frame) {
  if (rank_ == 0) return EndOnPeerLoss(from, "it sent a frame of the wrong type");
  EndGeneration(
      frame.status.ok() ? Internal(Name(0) + " ended the job without a reason") : frame.status,
      frame.rank);
}

void Engine::State::OnFault(Rank from, const Frame& frame) {
  const Rank suspect = frame.rank;
  if (rank_ != 0 || !peers_.InRange(suspect) || frame.status.ok()) {
    return EndOnPeerLoss(from, "it sent a fault report that makes no sense");
  }
  if (!ended_.ok()) return;
  if (suspect == from) return EndGeneration(frame.status, from);
  if (peers_.departed(suspect) || (suspect == rank_ && leaving_)) {
    return EndGeneration(LeftStatus(suspect, ""), suspect);
  }
  peers_.Suspect(
      suspect, {Name(from) + " reports: " + frame.status.message(), now_ + kSequencerGrace, true});
}

void Engine::State::OnPeerLost(Rank peer, const std::string& reason) {
  if (peers_.gone(peer)) return;
  if (peers_.IsControlPeer(peer)) {
    // The frames of this connection came before this event: there is no goodbye under way.
    peers_.MarkGone(peer);
    if (!peers_.departed(peer)) EndOnPeerLoss(peer, reason);
  } else if (!peers_.departed(peer) && closed_.ok()) {
    peers_.Suspect(peer, {reason, now_ + kGoodbyeGrace, false});
  }
}

void Engine::State::OnBrokenStream(const Completion& completion, const std::string& what) {
  const Rank suspect = completion.suspect;
  // With rank 0 gone after its goodbye everybody leaves, and nobody can pass on who did.
  if (peers_.departed(suspect) || peers_.gone(0)) return EndOnLeave(suspect, what);
  const Status evidence =
      Unavailable("the data stream of " + what + " broke: " + completion.status.message());
  peers_.Suspect(suspect,
                 {evidence.message(), now_ + (rank_ == 0 ? kSequencerGrace : kFaultGrace), true});
  Report(suspect, evidence);
  // Bytes of this plan may be left in the streams: what is queued behind it must not run.
  effects_.abort = LostStatus(suspect, evidence.message());
  aborted_ = true;
}

void Engine::State::EndOnPeerLoss(Rank peer, const std::string& reason) {
  if (!ended_.ok()) return;
  const Status why = LostStatus(peer, reason);
  Report(peer, why);
  EndGeneration(why, peer);
}

void Engine::State::EndOnLeave(Rank peer, const std::string& what) {
  if (!ended_.ok()) return;
  const Status why = LeftStatus(peer, what);
  Report(peer, why);
  EndGeneration(why, peer);
}

void Engine::State::EndOnError(const Status& status) {
  if (!ended_.ok()) return;
  Report(rank_, status);
  EndGeneration(status, rank_);
}

void Engine::State::Report(Rank rank, const Status& status) {
  if (rank_ == 0) return;  // rank 0 tells everybody when the generation ends
  Frame fault;
  fault.type = FrameType::kFault;
  fault.rank = rank;
  fault.status = status;
  SendFrame(0, fault);
}

void Engine::State::EndGeneration(const Status& why, Rank lost) {
  if (!ended_.ok()) return;
  ended_ = why;
  if (rank_ == 0) {
    Frame abort;
    abort.type = FrameType::kAbort;
    abort.rank = lost;
    abort.status = why;
    Broadcast(abort, kNoRank);
  }
  if (!aborted_) effects_.abort = why;
  aborted_ = true;
  CompleteHeld(why);
  Close(why);
}

void Engine::State::Close(const Status& why) {
  if (closed_.ok()) {
    closed_ = why;
    drain_deadline_ = now_ + kDrainLimit;
  }
  negotiator_.reset();
  for (CallId id : entries_.TakeWaiting()) effects_.results.emplace_back(id, why);
}

Status Engine::State::LostStatus(Rank peer, const std::string& reason) const {
  return Unavailable(Name(peer) + " was lost: " + reason +
                     ". See the log of that rank; the job must be started again");
}

Status Engine::State::LeftStatus(Rank peer, const std::string& what) const {
  std::string text = Name(peer) + " has shut down";
  // Rank 0 often leaves because another rank did: say which.
  const Rank first = peers_.first_departed();
  if (peer == 0 && rank_ != 0 && first != kNoRank && first != 0) {
    text += ", after " + Name(first) + " had";
  }
  if (!what.empty()) text += " while " + what + " was running";
  return Cancelled(text + ": no collective with it is possible any more");
}

}  // namespace tfring
